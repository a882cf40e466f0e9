#include "workspace/checkpoint/memory/described_weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/text/nearest_name.hpp"
#include "lib/platform/host.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "workspace/checkpoint/memory/placement_json.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

/// The description of one rank: a text that ranks may share, and numbers of its own.
struct Encoded {
  std::string names{};                  ///< JSON: the names of the tensors, their kinds, and distinct placements
  std::vector<std::int64_t> numbers{};  ///< place and grid, then the kinds
};

constexpr std::size_t grid_numbers = 8;

class Encoder {
 public:
  explicit Encoder(Placements const& placements, std::string const& operation)
      : placements_(placements), operation_(operation) {}

  [[nodiscard]] Encoded encode(StateDict const& weights) {
    auto const& p = placements_;
    require_size("tp", p.tp);
    require_size("pp", p.pp);
    require_size("ep", p.ep);
    require_expert_groups(operation_, "placements", p);
    require_place(operation_, "placements", "tp_rank", p.tp_rank, p.tp);
    require_place(operation_, "placements", "pp_rank", p.pp_rank, p.pp);
    require_place(operation_, "placements", "ep_rank", p.ep_rank, p.ep);
    Encoded out;
    out.numbers = {p.tp_rank, p.tp, p.pp_rank, p.pp, p.ep_rank, p.ep, p.moe_ep, 0};
    Json names = Json::array();
    Json kinds = Json::array();
    for (auto const& [name, tensor] : weights) {
      names.push_back(name);
      kinds.push_back(number_of(kind_of(name, tensor), out));
    }
    out.names = Json::array({std::move(names), std::move(kinds), std::move(known_)})
                    .dump(-1, ' ', false, Json::error_handler_t::replace);
    return out;
  }

 private:
  void require_size(char const* name, int size) const {
    if (size >= 1) return;
    throw UsageError({.operation = operation_,
                      .message = std::string("`") + name + "` of the placements is not a number of ranks",
                      .expected = "1 or more",
                      .got = std::to_string(size),
                      .hint = "leave it at 1 if the weights are not sharded this way"});
  }

  /// Returns the numbers that a kind consists of: dtype, placement, first element, and the shape with its length.
  std::vector<std::int64_t> kind_of(std::string const& name, Tensor const& tensor) {
    if (!tensor.defined()) {
      throw UsageError({.operation = operation_,
                        .message = "tensor is undefined",
                        .resource = name,
                        .hint = "assign it, or erase its name from the weights"});
    }
    if (codec::find_bad_utf8(name) != std::string::npos) {
      throw UsageError({.operation = operation_,
                        .message = "the name of a tensor is not UTF-8",
                        .resource = name,
                        .hint = "rename the tensor"});
    }
    require_readable(tensor, operation_.c_str());
    auto const own = placements_.tensors.find(name);
    auto placement = own == placements_.tensors.end() ? placements_.otherwise : own->second;
    auto const first = placement.first_element;
    if (first && (!placement.placements.empty() || !placement.shape || *first < 0)) {
      throw UsageError(
          {.operation = operation_,
           .message = "a flattened tensor needs `first_element` of at least 0, a `shape` and no placements",
           .resource = name,
           .hint = "set `shape` to the shape of the whole tensor, and clear `placements`"});
    }
    placement.first_element.reset();
    auto const& shape = tensor.shape();
    std::vector<std::int64_t> kind{static_cast<std::int64_t>(tensor.dtype()),
                                   static_cast<std::int64_t>(placement_number(placement)), first.value_or(-1),
                                   static_cast<std::int64_t>(shape.size())};
    kind.insert(kind.end(), shape.begin(), shape.end());
    return kind;
  }

  std::size_t number_of(std::vector<std::int64_t> const& kind, Encoded& out) {
    auto const [at, fresh] = kinds_.emplace(kind, kinds_.size());
    if (fresh) out.numbers.insert(out.numbers.end(), kind.begin(), kind.end());
    return at->second;
  }

  std::size_t placement_number(TensorPlacement const& placement) {
    // Neighbours usually have the same placement.
    if (last_ && *last_ == placement) return last_number_;
    auto json = to_json(placement);
    auto const [at, fresh] = numbers_.emplace(json.dump(), known_.size());
    if (fresh) known_.push_back(std::move(json));
    last_ = placement;
    last_number_ = at->second;
    return last_number_;
  }

  Placements const& placements_;
  std::string const& operation_;
  std::map<std::vector<std::int64_t>, std::size_t> kinds_{};
  Json known_ = Json::array();
  std::map<std::string, std::size_t> numbers_{};
  std::optional<TensorPlacement> last_{};
  std::size_t last_number_ = 0;
};

std::shared_ptr<WeightNames const> parse_names(std::string_view text) {
  auto const json = Json::parse(text);
  auto names = std::make_shared<WeightNames>();
  names->names = json.at(0).get<std::vector<std::string>>();
  names->kinds = json.at(1).get<std::vector<std::uint32_t>>();
  for (auto const& one : json.at(2)) names->placements.push_back(tensor_placement_from(one));
  return names;
}

std::string_view as_text(std::vector<std::byte> const& bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// Returns the names of the tensors of all ranks.
std::vector<std::string> names_of_all(std::map<std::int64_t, std::shared_ptr<WeightNames const>> const& parsed) {
  std::set<std::string> names;
  for (auto const& [digest, one] : parsed) names.insert(one->names.begin(), one->names.end());
  return {names.begin(), names.end()};
}

RankWeights decode(std::shared_ptr<WeightNames const> names, std::span<std::int64_t const> numbers) {
  RankWeights rank{.place = {.tp = static_cast<int>(numbers[0]),
                             .pp = static_cast<int>(numbers[2]),
                             .ep = static_cast<int>(numbers[4])},
                   .names = std::move(names)};
  rank.place.moe = rank.place.tp % static_cast<int>(numbers[6]);
  constexpr std::size_t before_shape = 4;
  for (auto at = grid_numbers; at < numbers.size();) {
    auto const dims = static_cast<std::size_t>(numbers[at + 3]);
    rank.kinds.push_back({.dtype = static_cast<Dtype>(numbers[at]),
                          .shape = Shape(numbers.subspan(at + before_shape, dims)),
                          .placement = &rank.names->placements.at(static_cast<std::size_t>(numbers[at + 1])),
                          .first_element = numbers[at + 2]});
    at += before_shape + dims;
  }
  return rank;
}

}  // namespace

void require_place(std::string const& operation, char const* whose, char const* name, int rank, int size) {
  if (size >= 1 && rank >= 0 && rank < size) return;
  throw UsageError({.operation = operation,
                    .message = std::string("`") + name + "` of the " + whose + " is outside the grid",
                    .expected = size < 1 ? "a grid with ranks" : "0 to " + std::to_string(size - 1),
                    .got = std::to_string(rank),
                    .hint = "count the ranks of each dimension from 0"});
}

void require_expert_groups(std::string const& operation, char const* whose, Placements const& placements) {
  if (placements.moe_ep >= 1 && placements.tp % placements.moe_ep == 0) return;
  throw UsageError({.operation = operation,
                    .message = std::string("`moe_ep` of the ") + whose + " does not divide the tensor-parallel size",
                    .expected = "a divisor of " + std::to_string(placements.tp),
                    .got = std::to_string(placements.moe_ep),
                    .hint = "leave `moe_ep` at 1 if each rank holds a slice of every expert"});
}

DescribedWeights describe_weights(Collective const& world, StateDict const& weights, Placements const& placements,
                                  std::string const& operation) {
  Encoded mine;
  agree(world, operation, [&] { mine = Encoder(placements, operation).encode(weights); });
  auto const digest = codec::checksum(std::as_bytes(std::span(mine.names)));
  mine.numbers[grid_numbers - 1] = static_cast<std::int64_t>(digest);
  auto const numbers = world.all_gatherv(std::as_bytes(std::span(mine.numbers)));
  auto const host = platform::this_host().id;
  auto const hosts = world.all_gatherv(std::as_bytes(std::span(host)));

  std::vector<std::vector<std::int64_t>> all(numbers.size());
  std::map<std::int64_t, std::size_t> first_with;  // digest of names -> first rank that has them
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    all[rank].resize(numbers[rank].size() / sizeof(std::int64_t));
    std::memcpy(all[rank].data(), numbers[rank].data(), numbers[rank].size());
    first_with.emplace(all[rank][grid_numbers - 1], rank);
  }
  bool const tells = first_with.at(mine.numbers[grid_numbers - 1]) == as_size(world.rank());
  auto const texts = world.all_gatherv(tells ? std::as_bytes(std::span(mine.names)) : std::span<std::byte const>());

  DescribedWeights out;
  std::map<std::int64_t, std::shared_ptr<WeightNames const>> parsed;
  for (auto const& [key, rank] : first_with) parsed.emplace(key, parse_names(as_text(texts[rank])));
  auto const& grid = all.front();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (auto const i : {1U, 3U, 5U, 6U}) {
      if (all[rank][i] == grid[i]) continue;
      throw MismatchError({.operation = operation,
                           .message = "ranks 0 and " + std::to_string(rank) + " give different sizes of the grid",
                           .expected = std::to_string(grid[i]),
                           .got = std::to_string(all[rank][i]),
                           .hint = "pass the same `tp`, `pp`, `ep` and `moe_ep` on all ranks",
                           .rank = world.rank(),
                           .world_size = world.world_size(),
                           .failed_ranks = {static_cast<int>(rank)}});
    }
    out.ranks.push_back(decode(parsed.at(all[rank][grid_numbers - 1]), all[rank]));
    out.ranks.back().host = as_text(hosts[rank]);
  }
  out.tp = static_cast<int>(grid[1]);
  out.pp = static_cast<int>(grid[3]);
  out.ep = static_cast<int>(grid[5]);
  out.moe_ep = static_cast<int>(grid[6]);
  agree(world, operation, [&] {
    bool const held = std::all_of(placements.tensors.begin(), placements.tensors.end(),
                                  [&](auto const& one) { return weights.find(one.first) != nullptr; });
    // Ranks may pass the placements of the whole model, so a name of another rank's tensor is right.
    if (!held) require_tensors_of(placements, names_of_all(parsed), operation);
  });
  return out;
}

void require_tensors_of(Placements const& placements, std::vector<std::string> const& names,
                        std::string const& operation) {
  std::set<std::string_view> const known(names.begin(), names.end());
  for (auto const& [name, placement] : placements.tensors) {
    if (known.contains(name)) continue;
    auto const near = nearest_name(name, names);
    throw UsageError({.operation = operation,
                      .message = "the placements name a tensor that does not exist",
                      .resource = name,
                      .hint = near ? "did you mean " + *near + "?" : "correct the name, or pass no placement for it"});
  }
}

}  // namespace crossrank::checkpoint
