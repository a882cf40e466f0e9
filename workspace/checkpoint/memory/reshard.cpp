#include <crossrank/checkpoint/memory_export.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/memory/described_weights.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/memory/held_tensor.hpp"
#include "workspace/checkpoint/memory/exchange/memory_fill.hpp"
#include "workspace/checkpoint/memory/placed_source.hpp"
#include "workspace/checkpoint/memory/placement_json.hpp"
#include "workspace/checkpoint/memory/exchange/value_exchange.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/plan/split_source.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/source/strided_copy.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* reshard_operation = "reshard";

/// What one rank wants, as all ranks know it.
struct WantedLayout {
  int tp_rank = 0;
  int tp = 1;
  int moe_ep = 1;
  int pp = 1;
  int ep = 1;
  std::tuple<int, int, int> cell{};
  TensorPlacement otherwise{};
  std::map<std::string, TensorPlacement> placements{};
  std::vector<std::size_t> tensors{};  ///< of the whole model
};

void require_target(TensorPlacement const& placement, std::string const& name) {
  bool const partial = std::any_of(placement.placements.begin(), placement.placements.end(),
                                   [](auto const& one) { return std::holds_alternative<Partial>(one); });
  if (!partial && !placement.first_element) return;
  throw UsageError({.operation = reshard_operation,
                    .message = "a result cannot be partial or flattened",
                    .expected = "Replicate, Shard or StridedShard",
                    .resource = name,
                    .hint = "pass Replicate to get the whole tensor on each rank"});
}

Json wanted_json(Placements const& to, ReshardOptions const& options, std::span<SourceTensor const> tensors) {
  require_place(reshard_operation, "new placements", "tp_rank", to.tp_rank, to.tp);
  require_place(reshard_operation, "new placements", "pp_rank", to.pp_rank, to.pp);
  require_place(reshard_operation, "new placements", "ep_rank", to.ep_rank, to.ep);
  require_expert_groups(reshard_operation, "new placements", to);
  require_target(to.otherwise, "otherwise");
  Json placements = Json::array();
  for (auto const& [name, placement] : to.tensors) {
    require_target(placement, name);
    placements.push_back({name, to_json(placement)});
  }
  Json wanted = Json::array();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!options.wants || options.wants(tensors[i].name)) wanted.push_back(i);
  }
  return Json::array({Json::array({to.tp_rank, to.tp, to.moe_ep, to.pp_rank, to.ep_rank, to.pp, to.ep}),
                      to_json(to.otherwise), std::move(placements), std::move(wanted)});
}

WantedLayout wanted_from(std::vector<std::byte> const& bytes) {
  auto const json = Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()));
  auto const& grid = json.at(0);
  WantedLayout wanted{.tp_rank = grid.at(0).get<int>(), .tp = grid.at(1).get<int>(), .moe_ep = grid.at(2).get<int>()};
  wanted.cell = {wanted.tp_rank, grid.at(3).get<int>(), grid.at(4).get<int>()};
  wanted.pp = grid.at(5).get<int>();
  wanted.ep = grid.at(6).get<int>();
  wanted.otherwise = tensor_placement_from(json.at(1));
  for (auto const& one : json.at(2))
    wanted.placements.emplace(one.at(0).get<std::string>(), tensor_placement_from(one.at(1)));
  wanted.tensors = json.at(3).get<std::vector<std::size_t>>();
  return wanted;
}

/// Throws unless all ranks give the same sizes of the new grid.
void require_one_grid(std::span<WantedLayout const> wanted) {
  auto const sizes_of = [](WantedLayout const& one) { return std::array{one.tp, one.moe_ep, one.pp, one.ep}; };
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    auto const first = sizes_of(wanted.front());
    auto const other = sizes_of(wanted[rank]);
    auto const [expected, got] = std::mismatch(first.begin(), first.end(), other.begin());
    if (expected == first.end()) continue;
    throw MismatchError({.operation = reshard_operation,
                         .message = "ranks 0 and " + std::to_string(rank) + " give different sizes of the new grid",
                         .expected = std::to_string(*expected),
                         .got = std::to_string(*got),
                         .hint = "pass the same `tp`, `pp`, `ep` and `moe_ep` on all ranks",
                         .failed_ranks = {static_cast<int>(rank)}});
  }
}

/// Throws unless all tensor-parallel ranks of each new stage are somebody's place. Else no rank would get their parts.
void require_whole_groups(std::span<WantedLayout const> wanted) {
  std::map<std::pair<int, int>, std::set<int>> places;
  for (auto const& one : wanted) {
    auto const [tp, pp, ep] = one.cell;
    places[{pp, ep}].insert(tp);
  }
  for (auto const& [stage, found] : places) {
    for (int tp = 0; tp < wanted.front().tp; ++tp) {
      if (found.contains(tp)) continue;
      throw UsageError({.operation = reshard_operation,
                        .message = "no rank has the new place of tensor-parallel rank " + std::to_string(tp) +
                                   ", stage " + std::to_string(stage.first) + ", expert rank " +
                                   std::to_string(stage.second),
                        .expected = std::to_string(wanted.front().tp) + " different values of `tp_rank`",
                        .got = std::to_string(found.size()),
                        .hint = "pass the place of each rank in the new placements"});
    }
  }
}

/// Makes what each rank receives.
class Targets {
 public:
  Targets(ExportPlan const& plan, std::vector<WantedLayout> const& wanted) : plan_(plan), wanted_(wanted) {
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      cells_[wanted[rank].cell].push_back(static_cast<int>(rank));
  }

  [[nodiscard]] std::vector<FillTarget> make() {
    std::vector<FillTarget> targets;
    for (std::size_t rank = 0; rank < wanted_.size(); ++rank) targets.push_back(target_of(static_cast<int>(rank)));
    return targets;
  }

 private:
  /// The tensors of one tensor-parallel rank.
  std::shared_ptr<SplitSource const> split_of(WantedLayout const& wanted) {
    auto& known = splits_[{wanted.tp_rank, wanted.tp, wanted.moe_ep}];
    if (known) return known;
    auto const set = as_whole(plan_.layout);
    std::optional<RuleSet> rules;
    if (wanted.tp > 1) rules = RuleSet::make_with(set, plan_.rules.value_or(RuleFile()));
    known =
        std::make_shared<SplitSource>(set.sources.front(), as_size(wanted.tp_rank), [&](SourceTensor const& tensor) {
          if (!rules) return SplitRule{};
          return rules->split_for(tensor.name, tensor, wanted.tp, wanted.moe_ep);
        });
    return known;
  }

  FillTarget target_of(int rank) {
    auto const& wanted = at_rank(wanted_, rank);
    auto const split = split_of(wanted);
    std::map<std::string_view, std::size_t> numbers;
    for (std::size_t i = 0; i < split->tensors().size(); ++i) numbers.emplace(split->tensors()[i].name, i);
    std::vector<PlacedTensor> placed;
    for (auto const i : wanted.tensors) {
      auto const found = numbers.find(plan_.layout->tensors.at(i).name);
      if (found == numbers.end()) continue;
      placed.push_back(place(rank, wanted, *split, found->second));
      require_agreement(rank, wanted, i, split->tensors()[found->second].name);
    }
    auto const source = std::make_shared<PlacedSource>(split, placed);
    return {.source = source, .inputs_of = [this, split, source](WorkUnit const& unit) {
              return inputs_of_piece(*split, *source, unit);
            }};
  }

  PlacedTensor place(int rank, WantedLayout const& wanted, ShardSource const& split, std::size_t number) const {
    auto const& tensor = split.tensors()[number];
    auto const& placement = placement_of(wanted, tensor.name);
    auto const& ranks = ranks_of(wanted, placement);
    auto const shape = mesh_shape(placement, ranks);
    require_whole_experts(wanted, tensor);
    auto const at = std::find(ranks.begin(), ranks.end(), rank);
    bool fits = at != ranks.end() && (placement.placements.empty() || placement.placements.size() == shape.size());
    std::int64_t product = 1;
    for (auto const length : shape)
      product = length < 1 || length > static_cast<std::int64_t>(ranks.size()) ? 0 : product * length;
    fits = fits && product == static_cast<std::int64_t>(ranks.size());
    for (auto const& one : placement.placements) fits = fits && shards_existing(one, tensor.shape.size());
    if (!fits) {
      throw UsageError(
          {.operation = reshard_operation,
           .message = "the new placement does not fit its mesh or the tensor",
           .expected = "a mesh with rank " + std::to_string(rank) + ", a placement for each of its dimensions",
           .got = std::to_string(placement.placements.size()) + " placements on " + std::to_string(ranks.size()) +
                  " ranks for " + to_string(tensor.shape),
           .resource = tensor.name,
           .hint = "correct the new placements"});
    }
    std::vector<MeshPlace> places(shape.size());
    auto rest = static_cast<std::int64_t>(at - ranks.begin());
    for (auto dim = shape.size(); dim-- > 0;) {
      places[dim] = {rest % shape[dim], shape[dim]};
      rest /= shape[dim];
    }
    return {number, held_entries(tensor.shape, placement.placements, places)};
  }

  static TensorPlacement const& placement_of(WantedLayout const& wanted, std::string const& name) {
    auto const own = wanted.placements.find(name);
    return own == wanted.placements.end() ? wanted.otherwise : own->second;
  }

  [[nodiscard]] std::vector<int> const& ranks_of(WantedLayout const& wanted, TensorPlacement const& placement) const {
    return placement.mesh.ranks.empty() ? cells_.at(wanted.cell) : placement.mesh.ranks;
  }

  static std::vector<std::int64_t> mesh_shape(TensorPlacement const& placement, std::vector<int> const& ranks) {
    if (!placement.mesh.shape.empty()) return placement.mesh.shape;
    return {static_cast<std::int64_t>(ranks.size())};
  }

  /// Throws for a stack of experts that the new grid would have to divide over its expert-parallel ranks.
  static void require_whole_experts(WantedLayout const& wanted, SourceTensor const& tensor) {
    bool const stack = tensor.shape.size() >= 3 && tensor.name.find("experts.") != std::string::npos &&
                       expert_prefix(tensor.name).empty();
    if (wanted.ep <= 1 || !stack) return;
    throw UsageError({.operation = reshard_operation,
                      .message = "stacked experts are not divided over the expert-parallel ranks of a grid",
                      .resource = tensor.name,
                      .hint = "use `moe_ep`, or place the tensor with Shard(0) on a mesh"});
  }

  void require_sound_mesh(std::vector<int> const& sorted, std::string const& name) const {
    auto const twice = std::adjacent_find(sorted.begin(), sorted.end());
    bool const inside = sorted.front() >= 0 && as_size(sorted.back()) < wanted_.size();
    if (twice == sorted.end() && inside) return;
    auto const got = inside ? *twice : sorted.front() < 0 ? sorted.front() : sorted.back();
    throw UsageError({.operation = reshard_operation,
                      .message = inside ? "the mesh of a new placement has a rank twice"
                                        : "the mesh of a new placement has a rank that is not in the group",
                      .expected = "each rank once, below " + std::to_string(wanted_.size()),
                      .got = "rank " + std::to_string(got),
                      .resource = name,
                      .hint = "correct the mesh of the new placement"});
  }

  /// Throws unless the ranks of a mesh that want a tensor place it in the same way, so that its pieces cover it.
  /// Compares each of them with the lowest and the highest one.
  void require_agreement(int rank, WantedLayout const& wanted, std::size_t merged, std::string const& name) {
    auto const& placement = placement_of(wanted, name);
    auto const& ranks = ranks_of(wanted, placement);
    auto const [ends, is_new] = mesh_ends_.try_emplace(&placement);
    if (is_new) {
      auto sorted = ranks;
      std::sort(sorted.begin(), sorted.end());
      require_sound_mesh(sorted, name);
      ends->second = {sorted.front(), sorted.back()};
    }
    for (int const other : {ends->second.first, ends->second.second}) {
      auto const& theirs = at_rank(wanted_, other);
      if (!std::binary_search(theirs.tensors.begin(), theirs.tensors.end(), merged)) continue;
      auto const& their_placement = placement_of(theirs, name);
      if (!compared_.emplace(&placement, &their_placement).second) continue;
      auto const& their_ranks = ranks_of(theirs, their_placement);
      if (ranks == their_ranks && placement.placements == their_placement.placements &&
          mesh_shape(placement, ranks) == mesh_shape(their_placement, their_ranks))
        continue;
      throw MismatchError({.operation = reshard_operation,
                           .message = "ranks " + std::to_string(rank) + " and " + std::to_string(other) +
                                      " give different new placements, so that parts would be on no rank",
                           .resource = name,
                           .hint = "pass the same new placement on all ranks of its mesh",
                           .failed_ranks = {rank, other}});
    }
  }

  static bool shards_existing(Placement const& placement, std::size_t dims) {
    auto const exists = [&](std::int64_t dim) {
      auto const count = static_cast<std::int64_t>(dims);
      return dim >= -count && dim < count;
    };
    if (auto const* const shard = std::get_if<Shard>(&placement)) return exists(shard->dim);
    auto const* const strided = std::get_if<StridedShard>(&placement);
    return strided == nullptr || (exists(strided->dim) && strided->split_factor >= 1);
  }

  /// Follows the bytes of a unit from the piece through the split to the cells.
  [[nodiscard]] std::vector<CellRange> inputs_of_piece(SplitSource const& split, PlacedSource const& source,
                                                       WorkUnit const& unit) const {
    std::vector<CellRange> ranges;
    source.for_each_input(unit.tensor, unit.offset, unit.bytes,
                          [&](std::size_t tensor, std::uint64_t begin, std::uint64_t bytes, std::uint64_t) {
                            for (auto const& piece : split.pieces(tensor)) {
                              if (!piece.copy.reaches(begin, bytes)) continue;
                              for_each_input_range(
                                  piece.copy, begin, bytes, [&](std::uint64_t first, std::uint64_t size) {
                                    for (auto const& range : inputs_of(*plan_.layout, piece.input.tensor, first, size))
                                      ranges.push_back(range);
                                  });
                            }
                          });
    join_ranges(ranges);
    return ranges;
  }

  ExportPlan const& plan_;
  std::vector<WantedLayout> const& wanted_;
  std::map<std::tuple<int, int, int>, std::vector<int>> cells_{};
  std::map<std::tuple<int, int, int>, std::shared_ptr<SplitSource const>> splits_{};
  std::map<TensorPlacement const*, std::pair<int, int>> mesh_ends_{};  ///< lowest and highest rank of each mesh
  std::set<std::pair<TensorPlacement const*, TensorPlacement const*>> compared_{};
};

}  // namespace

StateDict reshard(Collective const& world, StateDict const& weights, Placements const& from, Placements const& to,
                  ReshardOptions const& options) {
  require_equal_options(world, reshard_operation, {});
  auto plan = plan_export(world, weights, from, options.model, reshard_operation);
  CROSSRANK_CRASH_POINT("export.reshard.planned");
  std::string text;
  agree(world, reshard_operation, [&] {
    auto names = names_of(*plan.layout);
    for (auto const& dropped : plan.layout->dropped) names.push_back(dropped.name);
    require_tensors_of(to, names, reshard_operation);
    text = wanted_json(to, options, MergedSource(plan.layout).tensors())
               .dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  std::vector<WantedLayout> wanted;
  for (auto const& bytes : world.all_gatherv(std::as_bytes(std::span(text)))) wanted.push_back(wanted_from(bytes));
  CROSSRANK_CRASH_POINT("export.reshard.layouts_known");
  require_one_grid(wanted);
  require_whole_groups(wanted);
  Targets targets(plan, wanted);
  auto const all = with_values(world, plan.cells, reshard_operation, [&] { return targets.make(); });
  return fill_memory(world, plan, all,
                     {.operation = reshard_operation, .threads = options.threads, .stop = options.stop});
}

}  // namespace crossrank::checkpoint
