#include "workspace/checkpoint/memory/weight_cells.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::checkpoint {
namespace {

std::string cell_name(ShardPlace const& place, DescribedWeights const& described, std::vector<int> const& ranks) {
  std::string name = "the weights of rank " + std::to_string(ranks.front());
  if (ranks.size() > 1) name += " and " + std::to_string(ranks.size() - 1) + " more";
  if (described.tp > 1) name += ", tensor-parallel rank " + std::to_string(place.tp);
  if (described.pp > 1) name += ", stage " + std::to_string(place.pp);
  if (described.ep > 1) name += ", expert rank " + std::to_string(place.ep);
  return name;
}

/// The tensors of the ranks of a cell. Ranks with the same names are one entry, and tensors that all ranks hold in the
/// same way are looked at once, so time and memory do not grow with ranks times tensors.
class CellBuilder {
 public:
  CellBuilder(CellRanks const& ranks, DescribedWeights const& described, int own_rank, std::string const& operation)
      : ranks_(ranks), described_(described), operation_(operation) {
    for (auto const rank : ranks.holding) add_rank(rank, own_rank);
  }

  [[nodiscard]] CellTensors make() {
    CellTensors tensors;
    std::vector<SourceTensor> described;
    described.reserve(order_.size());
    tensors.held.reserve(order_.size());
    tensors.own.reserve(order_.size());
    for (auto const& name : order_) {
      auto const& places = places_.at(name);
      auto const& holding = holding_of(std::string(name), places);
      described.push_back({.name = std::string(name), .dtype = holding.tensor.dtype, .shape = holding.tensor.shape});
      tensors.held.push_back(holding.held);
      tensors.own.push_back(own_of(places));
    }
    tensors.described = std::make_shared<std::vector<SourceTensor> const>(std::move(described));
    return tensors;
  }

 private:
  /// Ranks with the same names.
  struct Listing {
    WeightNames const* names = nullptr;
    std::vector<int> ranks{};
    bool has_own = false;  ///< whether this rank is one of them
  };
  /// A listing and the number of a tensor, or of a kind, in it.
  using Entry = std::pair<std::uint32_t, std::uint32_t>;

  void add_rank(int rank, int own_rank) {
    auto const* const names = at_rank(described_.ranks, rank).names.get();
    auto found = std::find_if(listings_.begin(), listings_.end(), [&](auto const& one) { return one.names == names; });
    if (found == listings_.end()) {
      auto const listing = static_cast<std::uint32_t>(listings_.size());
      for (std::size_t i = 0; i < names->names.size(); ++i) {
        auto& places = places_[names->names[i]];
        if (places.empty()) order_.emplace_back(names->names[i]);
        places.emplace_back(listing, static_cast<std::uint32_t>(i));
      }
      found = listings_.insert(listings_.end(), Listing{.names = names});
    }
    found->ranks.push_back(rank);
    found->has_own = found->has_own || rank == own_rank;
  }

  /// How the ranks hold tensors of one kind. The name is that of the first one.
  struct Holding {
    SourceTensor tensor{};
    std::shared_ptr<HeldTensor const> held{};
  };

  [[nodiscard]] std::uint32_t own_of(std::vector<Entry> const& places) const {
    auto const own =
        std::find_if(places.begin(), places.end(), [&](auto const& entry) { return listings_[entry.first].has_own; });
    return own == places.end() ? CellTensors::none : own->second;
  }

  Holding const& holding_of(std::string const& name, std::vector<Entry> const& places) {
    std::vector<Entry> kinds;
    for (auto const& [listing, tensor] : places) kinds.emplace_back(listing, listings_[listing].names->kinds[tensor]);
    auto const [known, fresh] = held_.try_emplace(kinds);
    if (fresh) known->second = hold(name, kinds);
    return known->second;
  }

  [[nodiscard]] Holding hold(std::string const& name, std::vector<Entry> const& kinds) const {
    std::vector<Member> members;
    for (auto const& [listing, kind] : kinds) {
      for (auto const rank : listings_[listing].ranks)
        members.push_back({.rank = rank, .described = &at_rank(described_.ranks, rank).kinds[kind]});
    }
    std::sort(members.begin(), members.end(), [](auto const& a, auto const& b) { return a.rank < b.rank; });
    auto found = hold_tensor(name, members, ranks_, operation_);
    return {.tensor = std::move(found.tensor), .held = std::make_shared<HeldTensor const>(std::move(found.held))};
  }

  CellRanks const& ranks_;
  DescribedWeights const& described_;
  std::string const& operation_;
  std::vector<Listing> listings_{};
  std::unordered_map<std::string_view, std::vector<Entry>> places_{};
  std::vector<std::string_view> order_{};
  std::map<std::vector<Entry>, Holding> held_{};
};

}  // namespace

CellSource::CellSource(std::string name, std::uint32_t number, CellTensors tensors)
    : name_(std::move(name)), number_(number), tensors_(std::move(tensors)) {
  for (auto const& tensor : *tensors_.described) bytes_ += dense_bytes(tensor.shape, tensor.dtype);
}

void CellSource::set_value(std::size_t tensor, std::uint64_t offset, std::vector<std::byte> bytes) {
  auto& known = values_[{tensor, offset}];
  if (known.size() < bytes.size()) known = std::move(bytes);
}

/// Copies bytes whose values all ranks know. Returns false if they are not all known.
bool CellSource::copy_value(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  for (auto at = values_.upper_bound({tensor, offset}); at != values_.begin();) {
    --at;
    auto const& [place, bytes] = *at;
    if (place.first != tensor) return false;
    if (offset + out.size() > place.second + bytes.size()) continue;
    if (!out.empty()) copy_memory(out.data(), bytes.data() + (offset - place.second), out.size());
    return true;
  }
  return false;
}

void CellSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const number = static_cast<std::uint32_t>(tensor);
  if (copy_value(tensor, offset, out)) return;
  if (!received_) throw NeedsValues{number_, number, offset, out.size()};
  while (!out.empty()) {
    auto const count = received_->copy(number_, number, offset, out);
    if (count == 0) {
      throw UsageError({.operation = "consolidate",
                        .message = "a read was not planned",
                        .got = std::to_string(out.size()) + " from " + std::to_string(offset),
                        .resource = name_ + ": " + tensors()[tensor].name,
                        .hint = "this is a defect of crossrank, please report it"});
    }
    offset += count;
    out = out.subspan(count);
  }
}

WeightCells make_cells(DescribedWeights const& described, StateDict const& weights, int rank,
                       std::string const& operation) {
  WeightCells out{.rank = rank};
  std::map<std::tuple<int, int, int>, CellRanks> ranks_of;
  for (std::size_t i = 0; i < described.ranks.size(); ++i) {
    auto const& one = described.ranks[i];
    out.hosts.push_back(one.host);
    auto& ranks = ranks_of[{one.place.pp, one.place.ep, one.place.tp}];
    (one.names->names.empty() ? ranks.idle : ranks.holding).push_back(static_cast<int>(i));
  }
  auto& set = out.set;
  set.tp = described.tp;
  set.pp = described.pp;
  set.ep = described.ep;
  set.moe_ep = described.moe_ep;
  for (int pp = 0; pp < set.pp; ++pp) {
    for (int ep = 0; ep < set.ep; ++ep) {
      std::shared_ptr<std::vector<SourceTensor> const> first;  // of tensor-parallel rank 0
      for (int tp = 0; tp < set.tp; ++tp) {
        ShardPlace const place{.tp = tp, .pp = pp, .ep = ep, .moe = tp % set.moe_ep};
        auto const found = ranks_of.find({pp, ep, tp});
        if (found == ranks_of.end() || found->second.holding.empty()) {
          throw FormatError(
              {.operation = operation,
               .message = "no rank has weights of tensor-parallel rank " + std::to_string(tp) + ", stage " +
                          std::to_string(pp) + ", expert rank " + std::to_string(ep),
               .expected = std::to_string(std::int64_t{set.tp} * set.pp * set.ep) + " such places with weights",
               .got = std::to_string(described.ranks.size()) + " ranks",
               .hint = "pass the place of each rank and the sizes of the grid in `placements`",
               .section = "placements"});
        }
        auto tensors = CellBuilder(found->second, described, rank, operation).make();
        if (tp == 0) {
          first = tensors.described;
        } else if (*tensors.described == *first) {
          tensors.described = first;
        }
        out.cells.push_back(std::make_shared<CellSource>(cell_name(place, described, found->second.holding),
                                                         static_cast<std::uint32_t>(out.cells.size()),
                                                         std::move(tensors)));
        set.sources.push_back(out.cells.back());
        set.places.push_back(place);
      }
    }
  }
  out.own = std::make_shared<WeightReader>(weights, operation);
  return out;
}

void read_own_units(WeightCells const& cells, std::uint32_t tensor, HeldTensor const& held, HeldBox const& box,
                    std::int64_t first, std::int64_t last, TakePiece const& take) {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  auto const read = [&] {
    cells.own->read_in_pieces(tensor, as_size(begin) * held.unit, as_size(end - begin) * held.unit, take);
  };
  // Runs of the whole tensor often touch in the rank's own one.
  held.for_each_run(box, first, last, [&](std::int64_t in, std::int64_t, std::int64_t count) {
    if (in != end) {
      read();
      begin = in;
    }
    end = in + count;
  });
  read();
}

}  // namespace crossrank::checkpoint
