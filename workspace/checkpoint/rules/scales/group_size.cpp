#include "workspace/checkpoint/rules/scales/group_size.hpp"

#include <set>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

bool comes_in_groups(NumberFormat format) {
  return format == NumberFormat::gptq || format == NumberFormat::awq || format == NumberFormat::compressed_int ||
         format == NumberFormat::int4_modelopt;
}

/// Returns the group size of a layer; 0 if its shapes do not give it.
std::int64_t group_of(std::string_view module, LayerTensors const& layer, LayerHints const& hints) {
  auto const* const weight = layer[TensorRole::weight];
  auto const* const scale = layer[TensorRole::weight_scale];
  if (weight == nullptr || scale == nullptr || weight->shape.size() != 2 || scale->shape.size() != 2) return 0;
  if (weight->dtype != Dtype::i32 && weight->dtype != Dtype::u8 && weight->dtype != Dtype::i8) return 0;
  try {
    auto const format = LayerFormat::recognize(module, layer, hints, {});
    return comes_in_groups(format.format()) ? format.group() : 0;
  } catch (FormatError const&) {
    return 0;  // told when the layer itself is asked for
  }
}

}  // namespace

std::int64_t common_group(std::vector<std::unordered_map<std::string_view, LayerTensors>> const& sources,
                          QuantizationHints const& hints) {
  std::set<std::int64_t> groups;
  for (auto const& source : sources) {
    for (auto const& [module, layer] : source) {
      auto const module_hints = hints.of(module);
      if (module_hints.group > 0 || module_hints.whole_inputs) continue;
      if (auto const group = group_of(module, layer, module_hints); group > 0) groups.insert(group);
      if (groups.size() > 1) return 0;
    }
  }
  return groups.empty() ? 0 : *groups.begin();
}

bool share_one_scale(LayerOnRanks const& layer, LayerValues const& values, LayerSharding const& sharding) {
  auto const& format = layer.formats.front();
  auto const role = TensorRole::weight_scale;
  bool const open = sharding.shard_axis == ShardAxis::row && comes_in_groups(format.format()) && format.group() == 0 &&
                    !layer.hints.whole_inputs && layer.formats.size() > 1 && values.layers.front()[role] != nullptr;
  if (!open) return false;
  auto const first = read_scales(values.stored(0, role));
  for (std::size_t rank = 1; rank < layer.formats.size(); ++rank) {
    if (values.layers[rank][role] != nullptr && read_scales(values.stored(rank, role)) == first) continue;
    auto const inputs = std::to_string(format.inputs());
    throw FormatError({.operation = "merge rules",
                       .message = "each rank has a scale of its own for its " + inputs +
                                  " inputs, and neither the config nor another layer says how large groups are",
                       .expected = "\"group_size\" in quantization_config or quantize_config.json",
                       .got = "none, and other scales on rank " + std::to_string(rank) + " than on rank 0",
                       .resource = layer.tensors.front()->name,
                       .hint = "add \"group_size\": " + inputs + " where it was quantized in groups of " + inputs +
                               "; shards that were quantized one by one are to be quantized again, together",
                       .failed_ranks = {static_cast<int>(rank)},
                       .section = to_string(ErrorSection::scales)});
  }
  return true;
}

}  // namespace crossrank::checkpoint
