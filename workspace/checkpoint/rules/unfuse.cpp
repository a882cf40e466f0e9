#include "workspace/checkpoint/rules/unfuse.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/scales/weight_shape.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(LayerOnRanks const& layer, std::string message, std::string expected, std::string got) {
  throw FormatError({.operation = "merge rules",
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = layer.tensors.front()->name,
                     .hint = "merge the unquantized weights and quantize again",
                     .section = to_string(ErrorSection::shape)});
}

/// Splits a layer that every rank has whole.
MergeRule part_of_whole(LayerOnRanks const& layer, FusedParts const& parts, MergeRule const& fused) {
  auto const axes = layer.formats.front().axes(layer.role, *layer.tensors.front());
  if (axes.single || axes.out < 0) return fused;
  Concatenate concat{.axis = axes.out, .replicas = static_cast<int>(layer.tensors.size())};
  for (std::size_t i = 0; i < parts.widths.size(); ++i) {
    auto const width = parts.widths[i];
    bool const last = i + 1 == parts.widths.size();  // its last block may be shorter
    if (width % axes.out_unit != 0 && !(last && layer.formats.front().has_blocks())) {
      refuse(layer, "parts of a fused layer share one stored value, so they cannot be separated",
             "multiples of " + std::to_string(axes.out_unit) + " outputs", list_text(parts.widths));
    }
    concat.parts.push_back(axes.out_length(width));
  }
  return {.kind = std::move(concat), .reason = fused.reason};
}

/// Returns the rule for all parts of a layer in which the parts repeat for each group.
MergeRule groups_of(LayerOnRanks const& layer, LayerSharding const& sharding, FusedParts const& parts,
                    MergeRule const& fused) {
  auto const axes = layer.formats.front().axes(layer.role, *layer.tensors.front());
  bool const whole = sharding.shard_axis == ShardAxis::replicate;
  if (axes.single || axes.out < 0) return fused;
  if (!whole && fused.is<KeepReplica>()) {
    refuse(layer, "every rank has the whole bias of a fused layer, so its parts cannot be separated",
           "a piece on each rank", "the whole bias");
  }
  if (sharding.rank_block > 0 || sharding.replicas > 1) {
    refuse(layer, "ranks share key/value heads of a fused layer, so its parts cannot be separated",
           "at least one key/value head on each rank", sharding.why);
  }
  auto const group = std::accumulate(parts.widths.begin(), parts.widths.end(), std::int64_t{0});
  auto const outputs = layer.formats.front().outputs();
  for (auto const& format : layer.formats) {
    bool const divides =
        format.outputs() == outputs && outputs % group == 0 &&
        std::all_of(parts.widths.begin(), parts.widths.end(), [&](auto width) { return width % axes.out_unit == 0; });
    if (divides) continue;
    refuse(layer, "the outputs of a fused layer are not whole groups of its parts",
           "multiples of " + std::to_string(group) + " outputs", std::to_string(format.outputs()));
  }
  Concatenate concat{.axis = axes.out,
                     .replicas = whole ? static_cast<int>(layer.tensors.size()) : 1,
                     .rank_block = 1,
                     .part_period = static_cast<int>(parts.widths.size())};
  for (std::int64_t i = 0; i < outputs / group; ++i) {
    for (auto const width : parts.widths) concat.parts.push_back(width / axes.out_unit);
  }
  return {.kind = std::move(concat), .reason = fused.reason};
}

}  // namespace

MergeRule unfuse(MergeRule const& fused, LayerOnRanks const& layer, LayerSharding const& sharding,
                 FusedParts const& parts, std::string_view suffix) {
  if (fused.is<UsePrecomputed>()) {
    refuse(layer, "parts of a fused layer share blocks of scales, so they cannot be separated",
           "shard boundaries between blocks", list_text(parts.widths));
  }
  if (layer.role == TensorRole::weight_shape && !parts.exact) {
    refuse(layer, "the rule does not give the original shapes of the parts", "\"parts\" as names of sizes",
           list_text(parts.widths));
  }
  bool const whole =
      sharding.shard_axis == ShardAxis::replicate || (layer.role == TensorRole::bias && fused.is<KeepReplica>());
  auto const each = parts.grouped ? groups_of(layer, sharding, parts, fused)
                    : whole       ? part_of_whole(layer, parts, fused)
                                  : fused;
  auto const* const joined = std::get_if<Concatenate>(&each.kind);
  if (joined != nullptr && joined->parts.empty()) {
    refuse(layer, "a fused layer, sharded as one block, while this model has its parts", "`fused_layout` per_rank",
           "`fused_layout` plain");
  }
  SeparateParts separate;
  for (std::size_t i = 0; i < parts.modules.size(); ++i) {
    auto output = layer.role == TensorRole::weight_shape
                      ? computed_weight_shape(layer, parts.widths.at(i), layer.formats.front().inputs())
                      : each;
    if (auto* const concat = std::get_if<Concatenate>(&output.kind)) concat->only_part = static_cast<int>(i);
    output.output_name = parts.modules[i] + std::string(suffix);
    output.reason +=
        "; part " + std::to_string(i + 1) + " of " + std::to_string(parts.modules.size()) + " of a fused layer";
    separate.rules.push_back(std::move(output));
  }
  return {.kind = std::move(separate), .reason = fused.reason};
}

}  // namespace crossrank::checkpoint
