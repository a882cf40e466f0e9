#include "workspace/checkpoint/memory/weight_cells.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/memory/combine_values.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::uint64_t most_value_bytes = std::uint64_t{64} << 20;

std::string cell_name(ShardPlace const& place, DescribedWeights const& described, std::vector<int> const& ranks) {
  std::string name = "the weights of rank " + std::to_string(ranks.front());
  if (ranks.size() > 1) name += " and " + std::to_string(ranks.size() - 1) + " more";
  if (described.tp > 1) name += ", tensor-parallel rank " + std::to_string(place.tp);
  if (described.pp > 1) name += ", stage " + std::to_string(place.pp);
  if (described.ep > 1) name += ", expert rank " + std::to_string(place.ep);
  return name;
}

std::vector<DescribedHeldTensor> tensors_of(std::vector<int> const& ranks, DescribedWeights const& described,
                                            std::string const& operation) {
  std::map<std::string_view, std::vector<Member>> members;
  std::vector<std::string_view> order;
  for (auto const rank : ranks) {
    auto const& tensors = described.ranks[static_cast<std::size_t>(rank)].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto& of_name = members[*tensors[i].name];
      if (of_name.empty()) order.push_back(*tensors[i].name);
      of_name.push_back({.rank = rank, .tensor = static_cast<std::uint32_t>(i), .described = &tensors[i]});
    }
  }
  std::vector<DescribedHeldTensor> held;
  for (auto const& name : order) held.push_back(hold_tensor(std::string(name), members.at(name), ranks, operation));
  return held;
}

/// Returns the last element of a dotted name.
std::string_view last_element(std::string_view name) {
  auto const dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// The values of some tensors, in a fixed order: for each box the tensors of the ranks of its first copy.
class ValueExchange {
 public:
  ValueExchange(WeightCells& cells, NeedsValues needed) : cells_(cells) {
    auto const ending = last_element(cells.cells[needed.cell]->tensors()[needed.tensor].name);
    for (auto const& cell : cells.cells) {
      for (std::size_t i = 0; i < cell->tensors().size(); ++i) {
        auto const& tensor = cell->tensors()[i];
        if (last_element(tensor.name) == ending) wanted_.emplace_back(cell.get(), i);
      }
    }
  }

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (auto const& [cell, i] : wanted_) sum += dense_bytes(cell->tensors()[i].shape, cell->tensors()[i].dtype);
    return sum;
  }

  [[nodiscard]] std::vector<std::byte> own() const {
    std::vector<std::byte> bytes;
    for_each_holder([&](HeldTensor const& held, HeldBox const& box, Holder const& holder) {
      if (holder.rank != cells_.rank) return;
      held.for_each_run(box, 0, units_of(held), [&](auto in, auto, auto count) {
        auto const run = own_units(cells_, holder.tensor, held.unit, in, in + count);
        bytes.insert(bytes.end(), run.begin(), run.end());
      });
    });
    return bytes;
  }

  void take(std::vector<std::vector<std::byte>> const& all) {
    std::vector<std::size_t> at(all.size());
    for (auto const& [cell, i] : wanted_) {
      auto const& held = cell->held(i);
      std::vector<std::byte> value(dense_bytes(cell->tensors()[i].shape, cell->tensors()[i].dtype));
      for (auto const& box : held.boxes) {
        std::vector<std::byte const*> parts;
        std::size_t bytes = held.unit;
        for (auto const length : box.box.size) bytes *= static_cast<std::size_t>(length);
        for (auto const& holder : box.copies.front()) {
          auto const rank = static_cast<std::size_t>(holder.rank);
          parts.push_back(all[rank].data() + at[rank]);
          at[rank] += bytes;
        }
        std::vector<std::byte> combined(bytes);
        combine_values(cell->tensors()[i].dtype, held.combine, parts, combined);
        std::size_t from = 0;
        held.for_each_run(box, 0, units_of(held), [&](auto, auto to, auto count) {
          auto const size = static_cast<std::size_t>(count) * held.unit;
          copy_memory(value.data() + static_cast<std::size_t>(to) * held.unit, combined.data() + from, size);
          from += size;
        });
      }
      cell->set_value(i, std::move(value));
    }
  }

 private:
  static std::int64_t units_of(HeldTensor const& held) {
    std::int64_t units = 1;
    for (auto const length : held.lengths) units *= length;
    return units;
  }

  template <class Visitor>
  void for_each_holder(Visitor const& visit) const {
    for (auto const& [cell, i] : wanted_) {
      for (auto const& box : cell->held(i).boxes) {
        for (auto const& holder : box.copies.front()) visit(cell->held(i), box, holder);
      }
    }
  }

  WeightCells& cells_;
  std::vector<std::pair<CellSource*, std::size_t>> wanted_{};
};

}  // namespace

CellSource::CellSource(std::string name, std::uint32_t number, std::vector<DescribedHeldTensor> tensors)
    : DescribedSource(std::move(name)), number_(number) {
  for (auto& tensor : tensors) {
    bytes_on_disk_ += dense_bytes(tensor.tensor.shape, tensor.tensor.dtype);
    tensors_.push_back(std::move(tensor.tensor));
    held_.push_back(std::move(tensor.held));
  }
}

void CellSource::set_value(std::size_t tensor, std::vector<std::byte> bytes) {
  values_.insert_or_assign(tensor, std::move(bytes));
}

void CellSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const number = static_cast<std::uint32_t>(tensor);
  if (auto const value = values_.find(tensor); value != values_.end()) {
    if (!out.empty()) copy_memory(out.data(), value->second.data() + offset, out.size());
    return;
  }
  if (!received_) throw NeedsValues{number_, number};
  while (!out.empty()) {
    auto const count = received_->copy(number_, number, offset, out);
    if (count == 0) {
      throw UsageError({.operation = "consolidate",
                        .message = "bytes that were not planned are read",
                        .got = std::to_string(out.size()) + " from " + std::to_string(offset),
                        .resource = name_ + ": " + tensors_[tensor].name,
                        .hint = "this is a defect of crossrank, please report it"});
    }
    offset += count;
    out = out.subspan(count);
  }
}

WeightCells make_cells(DescribedWeights const& described, StateDict const& weights, int rank,
                       std::string const& operation) {
  WeightCells out{.rank = rank};
  std::map<std::tuple<int, int, int>, std::vector<int>> ranks_of;
  for (std::size_t i = 0; i < described.ranks.size(); ++i) {
    auto const& one = described.ranks[i];
    out.hosts.push_back(one.host);
    auto& ranks = ranks_of[{one.place.pp, one.place.ep, one.place.tp}];
    // A rank without tensors takes no part in its cell.
    if (!one.tensors.empty()) ranks.push_back(static_cast<int>(i));
  }
  auto& set = out.set;
  set.tp = described.tp;
  set.pp = described.pp;
  set.ep = described.ep;
  set.moe_ep = described.moe_ep;
  for (int pp = 0; pp < set.pp; ++pp) {
    for (int ep = 0; ep < set.ep; ++ep) {
      for (int tp = 0; tp < set.tp; ++tp) {
        ShardPlace const place{.tp = tp, .pp = pp, .ep = ep, .moe = tp % set.moe_ep};
        auto const found = ranks_of.find({pp, ep, tp});
        if (found == ranks_of.end() || found->second.empty()) {
          throw FormatError({.operation = operation,
                             .message = "no rank has weights of tensor-parallel rank " + std::to_string(tp) +
                                        ", stage " + std::to_string(pp) + ", expert rank " + std::to_string(ep),
                             .expected = std::to_string(set.tp * set.pp * set.ep) + " such places with weights",
                             .got = std::to_string(described.ranks.size()) + " ranks",
                             .hint = "pass the place of each rank and the sizes of the grid in `placements`",
                             .section = "placements"});
        }
        out.cells.push_back(std::make_shared<CellSource>(cell_name(place, described, found->second),
                                                         static_cast<std::uint32_t>(out.cells.size()),
                                                         tensors_of(found->second, described, operation)));
        set.sources.push_back(out.cells.back());
        set.places.push_back(place);
      }
    }
  }
  for (auto const& entry : weights) out.own.push_back(entry.second);
  return out;
}

void exchange_values(Collective const& world, WeightCells& cells, NeedsValues needed, std::string const& operation) {
  ValueExchange exchange(cells, needed);
  auto const& name = cells.cells[needed.cell]->tensors()[needed.tensor].name;
  if (auto const bytes = exchange.bytes(); bytes > most_value_bytes) {
    throw UsageError({.operation = operation,
                      .message = "the rules depend on values that are too large to send to all ranks",
                      .expected = "at most " + std::to_string(most_value_bytes) + " bytes",
                      .got = std::to_string(bytes),
                      .resource = name,
                      .hint = "save shards, and merge their files"});
  }
  exchange.take(world.all_gatherv(exchange.own()));
}

std::span<std::byte const> own_units(WeightCells const& cells, std::uint32_t tensor, std::size_t unit,
                                     std::int64_t first, std::int64_t last) {
  return cells.own.at(tensor).bytes().subspan(static_cast<std::size_t>(first) * unit,
                                              static_cast<std::size_t>(last - first) * unit);
}

}  // namespace crossrank::checkpoint
