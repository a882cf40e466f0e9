#include "workspace/checkpoint/rules/scales/weight_shape.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

using Lengths = std::vector<std::int64_t>;

/// Returns whether `length` packed numbers take as much space as `packed` numbers. The last word may be padded.
bool fits(std::int64_t length, std::int64_t packed, std::int64_t packing) {
  return length <= packed && length > packed - packing;
}

std::string text_of(std::int64_t outputs, std::int64_t inputs) {
  return "[" + std::to_string(outputs) + ", " + std::to_string(inputs) + "]";
}

/// Returns the length of all ranks together along the shard axis; replicas count once.
std::int64_t merged_length(LayerSharding const& sharding, Lengths const& own) {
  auto const parts = sharding.parts.empty() ? Lengths{1} : sharding.parts;
  std::int64_t sum = 0;
  for (auto const part : parts) sum += part;
  std::int64_t whole = 0;
  for (std::size_t rank = 0; rank < own.size(); ++rank) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto const copies = i < sharding.part_replicas.size() ? sharding.part_replicas[i] : sharding.replicas;
      if (rank % as_size(std::max(copies, 1)) == 0) whole += own[rank] / sum * parts[i];
    }
  }
  return whole;
}

/// The lengths of a layer, and the number of inputs in one word.
struct Packed {
  explicit Packed(LayerFormat const& format, SourceTensor const& weight)
      : outputs(format.outputs()), inputs(format.inputs()), packing(format.axes(TensorRole::weight, weight).in_unit) {}
  [[nodiscard]] bool is(Lengths const& shape) const {
    return shape.size() == 2 && shape[0] == outputs && fits(shape[1], inputs, packing);
  }
  std::int64_t outputs;
  std::int64_t inputs;
  std::int64_t packing;
};

}  // namespace

MergeRule computed_weight_shape(LayerOnRanks const& layer, std::int64_t outputs, std::int64_t inputs) {
  auto const dtype = layer.tensors.front()->dtype;
  auto const width = bits_of(dtype) / 8;
  if (dtype != Dtype::i64 && dtype != Dtype::i32) {
    throw FormatError({.operation = "merge rules",
                       .message = "an original shape does not consist of integers",
                       .expected = "I64 or I32",
                       .got = std::string(name_of(dtype)),
                       .resource = layer.tensors.front()->name,
                       .hint = "merge the unquantized weights and quantize again",
                       .section = to_string(ErrorSection::shape)});
  }
  UsePrecomputed values{.shape = {2}, .bytes = std::vector<std::byte>(2 * width)};
  // Little-endian: the low bytes come first.
  std::memcpy(values.bytes.data(), &outputs, width);
  std::memcpy(values.bytes.data() + width, &inputs, width);
  return {.kind = std::move(values), .reason = "the original shape: computed"};
}

void resolve_weight_shape(MergeRule& rule, LayerOnRanks const& layer, LayerValues const& values,
                          LayerSharding const& sharding) {
  std::vector<Packed> packed;
  std::vector<Lengths> recorded;
  Lengths along;
  for (std::size_t rank = 0; rank < layer.formats.size(); ++rank) {
    auto const* const weight = values.layers[rank][TensorRole::weight];
    if (weight == nullptr || weight->shape.size() != 2 || layer.tensors[rank]->shape.numel() != 2) return;
    packed.emplace_back(layer.formats[rank], *weight);
    recorded.push_back(read_integers(values.stored(rank, TensorRole::weight_shape)));
    along.push_back(sharding.shard_axis == ShardAxis::column ? packed.back().outputs : packed.back().inputs);
  }
  auto whole = packed.front();
  (sharding.shard_axis == ShardAxis::column ? whole.outputs : whole.inputs) = merged_length(sharding, along);
  bool const loses_padding = sharding.shard_axis == ShardAxis::column && sharding.true_outputs >= 0;
  auto without_padding = whole;
  if (loses_padding) without_padding.outputs = sharding.true_outputs;
  bool own = true;
  bool all = true;
  for (std::size_t rank = 0; rank < recorded.size(); ++rank) {
    own = own && packed[rank].is(recorded[rank]);
    all = all && (whole.is(recorded[rank]) || without_padding.is(recorded[rank])) && recorded[rank] == recorded.front();
    if (own || all) continue;
    throw FormatError(
        {.operation = "merge rules",
         .message = "the original shape on rank " + std::to_string(rank) +
                    " is neither that of its packed weight nor that of the whole layer",
         .expected = text_of(packed[rank].outputs, packed[rank].inputs) + " or " + text_of(whole.outputs, whole.inputs),
         .got = list_text(recorded[rank]),
         .resource = layer.tensors[rank]->name,
         .hint = "check that all files are of one model",
         .failed_ranks = {static_cast<int>(rank)},
         .section = to_string(ErrorSection::shape)});
  }
  if (loses_padding) {
    rule = computed_weight_shape(layer, sharding.true_outputs, recorded.front().back());
    return;
  }
  if (own) return;
  rule = {.kind = KeepReplica{}, .reason = "the original shape of the whole layer is on every rank"};
}

std::vector<Defect> check_weight_shapes(std::shared_ptr<ShardSource const> const& source,
                                        QuantizationHints const& hints) {
  std::unordered_map<std::string_view, LayerTensors> layers;
  std::vector<std::pair<std::string_view, std::size_t>> shapes;
  auto const tensors = source->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto const parsed = parse_tensor_name(tensors[i].name);
    layers[parsed.module].set(parsed.role, tensors[i]);
    if (parsed.role == TensorRole::weight_shape && tensors[i].shape.numel() == 2) shapes.emplace_back(parsed.module, i);
  }
  std::vector<Defect> defects;
  for (auto const& [module, at] : shapes) {
    auto const* const weight = layers.at(module)[TensorRole::weight];
    if (weight == nullptr || weight->shape.size() != 2) continue;
    try {
      Packed const packed(LayerFormat::recognize(module, layers.at(module), hints.of(module), {}), *weight);
      auto const recorded = read_integers({source, at});
      if (packed.is(recorded)) continue;
      defects.push_back({DefectKind::shape, tensors[at].name,
                         "the original shape does not fit the packed weight: expected " +
                             text_of(packed.outputs, packed.inputs) + ", got " + list_text(recorded),
                         "merge or save the model again"});
    } catch (Error const&) {
      // Other checks report formats and files that cannot be read.
    }
  }
  return defects;
}

}  // namespace crossrank::checkpoint
