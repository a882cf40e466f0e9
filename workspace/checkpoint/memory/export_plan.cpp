#include "workspace/checkpoint/memory/export_plan.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/python_json.hpp"
#include "workspace/checkpoint/discovery/model_description.hpp"
#include "workspace/checkpoint/memory/described_weights.hpp"
#include "workspace/checkpoint/memory/exchange/value_exchange.hpp"
#include "workspace/checkpoint/memory/replica_digests.hpp"
#include "workspace/checkpoint/memory/rule_direction.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/plan/checks/plan_warnings.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* all_weights = "the weights of all ranks";

/// What rank 0 tells the others about the model.
struct SharedDescription {
  Json config = Json::object();
  Json quantization = Json::object();
  std::optional<RuleFile> rules{};
  FusedLayout fused = FusedLayout::automatic;
};

Json describe_model(ModelDescription const& model, ShardSet& set, std::string const& operation) {
  require_config(operation, model.config);
  if (!model.directory.empty()) take_description(set, list_directory(model.directory));
  if (!model.config.empty()) set.config = model.config;
  std::string rules;
  if (!model.rules.empty()) {
    auto file = RuleFile::read(model.rules);
    rules = file.text;
    (void)directed(std::move(file), model.direction, model.rules.string());  // throws before other ranks read them
  }
  return {set.config,
          set.quantization,
          std::move(rules),
          model.rules.string(),
          static_cast<int>(model.fused_layout),
          static_cast<int>(model.direction)};
}

/// Tells all ranks what the model is. Collective; only rank 0's description counts.
SharedDescription share_description(Collective const& world, ModelDescription const& model, ShardSet& set,
                                    std::string const& operation) {
  std::string text;
  agree(world, operation, [&] {
    if (world.rank() == 0) text = codec::to_python_json(describe_model(model, set, operation));
  });
  auto const all = world.all_gatherv(std::as_bytes(std::span(text)));
  auto const json = codec::parse_python_json({reinterpret_cast<char const*>(all.front().data()), all.front().size()},
                                             {.limits = {.bytes = codec::listing_limits.bytes,
                                                         .values = codec::listing_limits.values,
                                                         .depth = codec::description_limits.depth + 1}});
  SharedDescription shared{
      .config = json.at(0), .quantization = json.at(1), .fused = static_cast<FusedLayout>(json.at(4).get<int>())};
  auto const& rules = json.at(2).get_ref<std::string const&>();
  if (!rules.empty()) {
    auto const source = json.at(3).get<std::string>();
    shared.rules = directed(RuleFile::parse(rules, source), static_cast<RuleDirection>(json.at(5).get<int>()), source);
  }
  return shared;
}

}  // namespace

void join_ranges(std::vector<CellRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](auto const& a, auto const& b) {
    return std::tie(a.cell, a.tensor, a.begin) < std::tie(b.cell, b.tensor, b.begin);
  });
  std::vector<CellRange> joined;
  for (auto const& range : ranges) {
    bool const touches = !joined.empty() && joined.back().cell == range.cell && joined.back().tensor == range.tensor &&
                         range.begin <= joined.back().end;
    if (touches) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  ranges = std::move(joined);
}

std::vector<CellRange> inputs_of(MergeLayout const& layout, std::size_t tensor, std::uint64_t offset,
                                 std::uint64_t size) {
  auto const& merged = layout.tensors[tensor];
  std::vector<CellRange> ranges;
  if (size == 0 || merged.rule->is<UsePrecomputed>()) return ranges;
  if (merged.rule->combines_values()) {
    for (auto const& range : combined_ranges(layout, merged, offset, size)) {
      for (auto const& input : range.inputs) ranges.push_back({input.source, input.tensor, range.begin, range.end});
    }
  } else {
    for (auto const& piece : merged.pieces) {
      if (!piece.copy.reaches(offset, size)) continue;
      for_each_input_range(piece.copy, offset, size, [&](std::uint64_t begin, std::uint64_t bytes) {
        ranges.push_back({piece.input.source, piece.input.tensor, begin, begin + bytes});
      });
    }
  }
  join_ranges(ranges);
  return ranges;
}

ExportPlan plan_export(Collective const& world, StateDict const& weights, Placements const& placements,
                       ModelDescription const& model, std::string const& operation) {
  ExportPlan plan;
  {
    // Freed before the plan needs memory.
    auto const described = describe_weights(world, weights, placements, operation);
    agree(world, operation, [&] { plan.cells = make_cells(described, weights, world.rank(), operation); });
  }
  auto& set = plan.cells.set;
  auto shared = share_description(world, model, set, operation);
  set.config = std::move(shared.config);
  set.quantization = std::move(shared.quantization);
  set.fused = shared.fused;
  auto const planned = with_values(world, plan.cells, operation, [&] {
    return plan_shard_set(plan.cells.set, shared.rules, ScalePolicy::exact, all_weights);
  });
  plan.layout = planned.layout;
  agree(world, operation, [&] {
    if (world.rank() != 0) return;
    log_plan_warnings({.layout = *planned.layout,
                       .rules = planned.rules,
                       .where = all_weights,
                       .rule_file = shared.rules ? &*shared.rules : nullptr,
                       .rule_path = model.rules.string()});
  });
  require_equal_replicas_in_memory(world, plan.cells, *plan.layout, operation);
  plan.rules = std::move(shared.rules);
  return plan;
}

}  // namespace crossrank::checkpoint
