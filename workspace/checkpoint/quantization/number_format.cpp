#include "workspace/checkpoint/quantization/number_format.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

bool is_f8(Dtype dtype) {
  return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2 || dtype == Dtype::f8_e4m3fnuz ||
         dtype == Dtype::f8_e5m2fnuz;
}

bool is_power_of_two_scale(Dtype dtype) { return dtype == Dtype::u8 || dtype == Dtype::f8_e8m0; }

/// Returns the only packing that gives as many scales per output as the layer has; empty unless there is exactly one.
std::optional<WeightPacking> own_packing(std::vector<WeightPacking> const& packings, std::int64_t words,
                                         std::int64_t scales) {
  std::optional<WeightPacking> own;
  for (auto const& packing : packings) {
    if (packing.bits > 32 || 32 % packing.bits != 0) continue;
    auto const inputs = words * (32 / packing.bits);
    if (scales != (packing.group > 0 ? divide_up(inputs, packing.group) : 1)) continue;
    if (own && (own->bits != packing.bits || own->group != packing.group)) return std::nullopt;
    own = WeightPacking{packing.bits, packing.group, packing.activation_order || (own && own->activation_order)};
  }
  return own;
}

/// Returns the dimension of spread scales that belongs to a dimension of the matrix.
int spread_axis(int axis, int stack) { return stack + 2 * (axis - stack); }

}  // namespace

bool spreads_blocks(Shape const& weight, Shape const& scale) {
  if (weight.size() < 2 || scale.size() != weight.size() + 2) return false;
  return scale[scale.size() - 1] == 1 && scale[scale.size() - 3] == 1;
}

std::string_view to_string(NumberFormat format) noexcept {
  switch (format) {
    case NumberFormat::plain: return "plain";
    case NumberFormat::fp8_tensor: return "FP8 per tensor";
    case NumberFormat::fp8_channel: return "FP8 per channel";
    case NumberFormat::fp8_block: return "FP8 per block";
    case NumberFormat::int8: return "INT8";
    case NumberFormat::int4_modelopt: return "INT4, ModelOpt's packing";
    case NumberFormat::awq: return "INT4, AutoAWQ's packing";
    case NumberFormat::gptq: return "GPTQ";
    case NumberFormat::compressed_int: return "packed INT of compressed-tensors";
    case NumberFormat::nvfp4: return "NVFP4";
    case NumberFormat::mxfp4: return "MXFP4";
    case NumberFormat::mxfp8: return "MXFP8";
  }
  return "unknown";
}

void LayerFormat::refuse(SourceTensor const& tensor, std::string_view problem) const {
  throw FormatError({.operation = "number format",
                     .message = std::string(problem) + " (read as " + std::string(to_string(format_)) + ")",
                     .got = std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape) + " in a layer of " +
                            std::to_string(outputs_) + " outputs and " + std::to_string(inputs_) + " inputs",
                     .resource = tensor.name,
                     .hint = "name the axis of this tensor in a rule file",
                     .section = to_string(ErrorSection::shape)});
}

LayerFormat LayerFormat::recognize(std::string_view module, LayerTensors const& tensors, LayerHints const& hints,
                                   LayerOrder order) {
  LayerFormat format;
  format.module_ = module;
  format.order_ = order;
  if (auto const* weight = tensors[TensorRole::weight]) {
    format.read_weight(*weight, tensors, hints);
  } else if (auto const* bias = tensors[TensorRole::bias]; bias != nullptr && !bias->shape.empty()) {
    format.outputs_ = bias->shape[bias->shape.size() - 1];
  }
  return format;
}

void LayerFormat::read_weight(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints) {
  weight_shape_ = weight.shape;
  if (order_.stacked && weight.shape.size() < 3) order_.stacked = false;
  // Tensors of blocks are [out, in], even in models with transposed plain weights.
  if (weight.name.ends_with("blocks")) order_.transposed = false;
  int const stack = order_.stacked ? 1 : 0;
  experts_ = order_.stacked ? weight.shape[0] : 0;
  packs_outputs_ = order_.transposed;
  weight_ = {.out = stack + (order_.transposed ? 1 : 0), .in = stack + (order_.transposed ? 0 : 1)};
  if (weight.shape.size() < 2) {
    weight_ = {.out = weight.shape.empty() ? -1 : 0, .single = weight.shape.empty()};
    outputs_ = weight.shape.empty() ? 0 : weight.shape[0];
    return;
  }
  auto const* scale = tensors[TensorRole::weight_scale];
  if (scale != nullptr && is_f8(weight.dtype)) {
    read_fp8(weight, tensors, hints);
  } else if (scale != nullptr && weight.dtype == Dtype::i32) {
    read_words(weight, tensors, hints);
  } else if (scale != nullptr &&
             (weight.dtype == Dtype::u8 || weight.dtype == Dtype::i8 || weight.dtype == Dtype::f4)) {
    read_bytes(weight, tensors, hints);
  } else {
    set_lengths(weight);
  }
}

void LayerFormat::set_lengths(SourceTensor const& weight) {
  outputs_ = at_axis(weight.shape, weight_.out) / weight_.out_steps * weight_.out_unit;
  inputs_ = at_axis(weight.shape, weight_.in) / weight_.in_steps * weight_.in_unit;
}

/// GPTQ lets numbers of 3 bits cross the boundaries of words: 32 of them fill 3 words.
void LayerFormat::set_packing(SourceTensor const& weight, int bits) {
  if (32 % bits == 0) {
    packing_ = 32 / bits;
  } else if (bits == 3 && format_ == NumberFormat::gptq) {
    packing_ = 32;
    words_ = 3;
    if (at_axis(weight.shape, order_.stacked ? 1 : 0) % words_ != 0)
      refuse(weight, "numbers of 3 bits do not fill groups of 3 words");
  } else {
    refuse(weight, "numbers of " + std::to_string(bits) + " bits do not fit evenly into words of 32 bits");
  }
}

void LayerFormat::read_fp8(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints) {
  set_lengths(weight);
  auto const& scale = *tensors[TensorRole::weight_scale];
  bool const block_configured = hints.block_out > 0 || scale.name.ends_with("_inv");
  if (spreads_blocks(weight.shape, scale.shape)) {
    read_spread_blocks(scale, hints);
  } else if (is_single(scale) && !block_configured) {
    format_ = NumberFormat::fp8_tensor;
  } else if (scale.shape.size() + 1 == weight.shape.size()) {  // NOLINT(bugprone-branch-clone): the order matters
    format_ = NumberFormat::fp8_channel;
  } else if (scale.shape.size() != weight.shape.size()) {
    refuse(scale, "the scale has more dimensions than its weight");
  } else if (is_power_of_two_scale(scale.dtype) && hints.block_out <= 1 &&
             at_axis(scale.shape, weight_.out) == outputs_) {
    format_ = NumberFormat::mxfp8;
    group_ = 32;
  } else if (hints.block_out == 0 && has_scale_per_group(scale, hints)) {
    format_ = NumberFormat::fp8_block;
    group_ = hints.group > 0 ? hints.group : group_of(scale);
  } else if (at_axis(scale.shape, weight_.in) == 1 && !block_configured &&
             at_axis(scale.shape, weight_.out) == outputs_) {
    format_ = NumberFormat::fp8_channel;
  } else {
    format_ = NumberFormat::fp8_block;
    block_out_ = hints.block_out > 0 ? hints.block_out : 128;
    group_ = hints.block_in > 0 ? hints.block_in : 128;
  }
}

/// Returns whether each output has a scale per group of inputs, as with the strategy "group" of compressed-tensors.
bool LayerFormat::has_scale_per_group(SourceTensor const& scale, LayerHints const& hints) const {
  if (at_axis(scale.shape, weight_.out) != outputs_) return false;
  auto const group = hints.group > 0 ? hints.group : group_of(scale);
  return group > 0 && at_axis(scale.shape, weight_.in) == divide_up(inputs_, group);
}

/// Reads spread block scales. If the config has no block sizes, they follow from the number of scales.
void LayerFormat::read_spread_blocks(SourceTensor const& scale, LayerHints const& hints) {
  format_ = NumberFormat::fp8_block;
  spread_ = true;
  auto const size = [](std::int64_t configured, std::int64_t length, std::int64_t blocks) {
    if (configured > 0) return configured;
    return blocks > 1 && length % blocks == 0 ? length / blocks : std::int64_t{128};
  };
  auto const stack = order_.stacked ? 1 : 0;
  auto const at = [&](int axis) { return at_axis(scale.shape, spread_axis(axis, stack)); };
  block_out_ = size(hints.block_out, outputs_, at(weight_.out));
  group_ = size(hints.block_in, inputs_, at(weight_.in));
}

void LayerFormat::read_bytes(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints) {
  auto const& scale = *tensors[TensorRole::weight_scale];
  bool const blocks = weight.name.ends_with("blocks") && weight.shape.size() == (order_.stacked ? 4U : 3U);
  bool const block_configured = hints.block_out > 0 || scale.name.ends_with("_inv");
  if (weight.dtype == Dtype::i8 && block_configured && scale.shape.size() == weight.shape.size()) {
    format_ = NumberFormat::int8;
    set_lengths(weight);
    block_out_ = hints.block_out > 0 ? hints.block_out : 128;
    group_ = hints.block_in > 0 ? hints.block_in : 128;
    return;
  }
  if (weight.dtype == Dtype::i8 && (is_single(scale) || scale.shape.size() + 1 == weight.shape.size())) {
    format_ = NumberFormat::int8;
    set_lengths(weight);
    return;
  }
  if (blocks) {
    if (weight.shape[weight.shape.size() - 1] != 16) refuse(weight, "the blocks do not have 16 bytes each");
    format_ = NumberFormat::mxfp4;
    group_ = weight_.in_unit = 32;
    set_lengths(weight);
    return;
  }
  if (scale.shape.size() != weight.shape.size())
    refuse(scale, "the scale and its packed weight have different numbers of dimensions");
  auto const row = as_size(weight_.out);
  // The number of rows shows the packing: a weight with packed outputs has half as many rows as its scale.
  if (scale.shape[row] == 2 * weight.shape[row] && weight.dtype != Dtype::f4) {
    format_ = NumberFormat::int4_modelopt;
    weight_.out_unit = 2;
  } else if (weight.dtype == Dtype::i8) {
    format_ = NumberFormat::int8;
  } else {
    format_ = is_power_of_two_scale(scale.dtype) ? NumberFormat::mxfp4 : NumberFormat::nvfp4;
    // Transposed stacks may be packed along either dimension. The other dimension is as long as that of the scale.
    packs_outputs_ = order_.transposed && scale.shape[row] != weight.shape[row];
    if (weight.dtype == Dtype::u8) (packs_outputs_ ? weight_.out_unit : weight_.in_unit) = 2;
  }
  set_lengths(weight);
  group_ = format_ == NumberFormat::mxfp4   ? 32
           : format_ == NumberFormat::nvfp4 ? nvfp4_group(scale, hints)
                                            : hints.group;
  if (group_ == 0) group_ = group_of(scale);
  if (group_ == 0) group_ = likely_group(scale, hints);
  if (format_ == NumberFormat::nvfp4 && is_power_of_two_scale(scale.dtype)) refuse(scale, "the scale is not F8_E4M3");
}

/// Returns the inputs per scale, judged by the number of scales: 16, or 32 in formats with F8 activations.
std::int64_t LayerFormat::nvfp4_group(SourceTensor const& scale, LayerHints const& hints) const {
  auto const length = packs_outputs_ ? outputs_ : inputs_;
  auto const scales = at_axis(scale.shape, packs_outputs_ ? weight_.out : weight_.in);
  for (auto const group : {std::int64_t{16}, std::int64_t{32}, hints.group}) {
    if (group > 0 && scales == divide_up(length, group)) return group;
  }
  return 16;
}

void LayerFormat::read_words(SourceTensor const& weight, LayerTensors const& tensors, LayerHints const& hints) {
  auto const& scale = *tensors[TensorRole::weight_scale];
  auto const stack = as_size(order_.stacked ? 1 : 0);
  if (scale.shape.size() != weight.shape.size())
    refuse(scale, "the scale and its packed weight have different numbers of dimensions");
  auto const columns = weight.shape[stack + 1];
  bool const compressed = weight.name.ends_with("weight_packed");
  auto const packing = compressed ? own_packing(hints.packings, columns, scale.shape[stack + 1]) : std::nullopt;
  bool const ordered = hints.activation_order || std::ranges::any_of(hints.packings, &WeightPacking::activation_order);
  auto const configured = packing ? *packing : WeightPacking{hints.bits, hints.group, ordered};
  activation_order_ = configured.activation_order;
  int const bits = configured.bits > 0 ? configured.bits : bits_of_words(weight, tensors);
  if (compressed) {
    format_ = NumberFormat::compressed_int;
    set_packing(weight, bits);
    weight_ = {.out = static_cast<int>(stack), .in = static_cast<int>(stack) + 1, .in_unit = packing_};
    order_.transposed = packs_outputs_ = false;
  } else {
    // GPTQ packs inputs, so its weight is as wide as its scales; AutoAWQ packs outputs.
    bool const gptq = columns == scale.shape[stack + 1];
    format_ = gptq ? NumberFormat::gptq : NumberFormat::awq;
    set_packing(weight, bits);
    weight_ = {.out = static_cast<int>(stack) + 1,
               .in = static_cast<int>(stack),
               .out_unit = gptq ? 1 : packing_,
               .in_unit = gptq ? packing_ : 1,
               .in_steps = words_};
    order_.transposed = true;
    if (!gptq && columns * packing_ != scale.shape[stack + 1]) {
      refuse(scale, "the scale is neither as wide as the packed weight nor as wide as the weight unpacked with " +
                        std::to_string(bits) + " bits");
    }
  }
  set_lengths(weight);
  group_ = configured.group > 0 ? configured.group : group_of(scale);
  if (group_ == 0) group_ = likely_group(scale, hints);
}

/// Returns the bits of a number, from the shapes; 4 if they do not show it. Used if the config does not have the
/// number.
int LayerFormat::bits_of_words(SourceTensor const& weight, LayerTensors const& tensors) const {
  auto const& scale = *tensors[TensorRole::weight_scale];
  auto const last = weight.shape.size() - 1;
  auto const bits_for = [](std::int64_t numbers, std::int64_t words) {
    if (numbers > 0 && numbers * 3 == words * 32) return 3;
    bool const divides = words > 0 && numbers % words == 0 && 32 % (numbers / words) == 0;
    return divides ? static_cast<int>(32 / (numbers / words)) : 4;
  };
  auto const* zeros = tensors[TensorRole::zeros];
  bool const packed_zeros =
      zeros != nullptr && zeros->dtype == Dtype::i32 && zeros->shape.size() == weight.shape.size();
  if (weight.name.ends_with("weight_packed"))
    return packed_zeros ? bits_for(scale.shape[last - 1], zeros->shape[last - 1]) : 4;
  if (weight.shape[last] != scale.shape[last]) return bits_for(scale.shape[last], weight.shape[last]);
  if (auto const* ids = tensors[TensorRole::group_ids]; ids != nullptr && !ids->shape.empty())
    return bits_for(ids->shape[ids->shape.size() - 1], weight.shape[last - 1]);
  return packed_zeros ? bits_for(scale.shape[last], zeros->shape[last]) : 4;
}

/// Returns the inputs per group, judged by the number of scales; 0 if one scale serves all inputs or the number does
/// not divide.
std::int64_t LayerFormat::group_of(SourceTensor const& scale) const {
  auto const groups = at_axis(scale.shape, weight_.in);
  return groups > 1 && inputs_ % groups == 0 ? inputs_ / groups : 0;
}

/// Returns the group size of other layers if it fits the number of scales, else 0. A rank with a single scale may hold
/// exactly one group.
std::int64_t LayerFormat::likely_group(SourceTensor const& scale, LayerHints const& hints) const {
  bool const fits = hints.likely_group > 0 && format_ != NumberFormat::int8 &&
                    at_axis(scale.shape, weight_.in) == divide_up(inputs_, hints.likely_group);
  return fits ? hints.likely_group : 0;
}

bool LayerFormat::is_single(SourceTensor const& tensor) const {
  std::int64_t elements = 1;
  for (auto const length : tensor.shape) elements *= length == 1 ? 1 : 2;
  if (elements == 1) return true;
  if (experts_ == 0 || tensor.shape.empty() || tensor.shape[0] != experts_) return false;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] != 1) return false;
  }
  return true;
}

TensorAxes LayerFormat::axes(TensorRole role, SourceTensor const& tensor) const {
  switch (role) {
    case TensorRole::weight: return weight_;
    case TensorRole::bias:
      if (tensor.shape.empty()) return {.single = true};
      return {.out = static_cast<int>(tensor.shape.size()) - 1};
    case TensorRole::low_rank_a: return {.in = static_cast<int>(tensor.shape.size()) - 1};
    case TensorRole::low_rank_b: return {.out = static_cast<int>(tensor.shape.size()) - 2};
    case TensorRole::group_ids:
    case TensorRole::pre_quant: return vector_axes(tensor);
    case TensorRole::weight_shape: return {};
    case TensorRole::weight_scale:
      if (spread_ && spreads_blocks(weight_shape_, tensor.shape)) return spread_axes(tensor);
      if (is_single(tensor) && !has_blocks()) break;
      if (tensor.shape.size() == (order_.stacked ? 2U : 1U)) {
        if (at_axis(tensor.shape, order_.stacked ? 1 : 0) != outputs_)
          refuse(tensor, "expected one value, or one per output");
        return {.out = order_.stacked ? 1 : 0};
      }
      return grid_axes(tensor, block_out_);
    case TensorRole::zeros:
      if (format_ == NumberFormat::plain || tensor.dtype != Dtype::i32) return grid_axes(tensor, 1);
      return grid_axes(tensor, packing_, words_);
    default: break;
  }
  if (!is_single(tensor)) refuse(tensor, "the " + std::string(to_string(role)) + " has more than one value");
  return {.single = true};
}

TensorAxes LayerFormat::vector_axes(SourceTensor const& tensor) const {
  if (tensor.shape.empty() || (is_single(tensor) && inputs_ != 1)) return {.single = true};
  auto const last = static_cast<int>(tensor.shape.size()) - 1;
  if (at_axis(tensor.shape, last) != inputs_) refuse(tensor, "expected one value per input");
  return {.in = last};
}

/// Returns the axes of spread block scales, which have a dimension of length one after each of their own.
TensorAxes LayerFormat::spread_axes(SourceTensor const& tensor) const {
  auto const stack = order_.stacked ? 1 : 0;
  TensorAxes const axes{.out = spread_axis(weight_.out, stack),
                        .in = spread_axis(weight_.in, stack),
                        .out_unit = block_out_,
                        .in_unit = group_};
  if (at_axis(tensor.shape, axes.in) != divide_up(inputs_, group_))
    refuse(tensor, "expected one value per " + std::to_string(group_) + " inputs");
  if (at_axis(tensor.shape, axes.out) != divide_up(outputs_, block_out_))
    refuse(tensor, "expected one value per " + std::to_string(block_out_) + " outputs");
  return axes;
}

/// Returns the axes of a scale or zero point with the dimensions of the weight. Along each dimension it has one value
/// per unit, or a single value.
TensorAxes LayerFormat::grid_axes(SourceTensor const& tensor, std::int64_t out_unit, std::int64_t out_steps) const {
  TensorAxes axes{.out = weight_.out, .in = weight_.in, .out_unit = out_unit, .out_steps = out_steps};
  if (std::min(axes.out, axes.in) < 0 || tensor.shape.size() <= as_size(std::max(axes.out, axes.in)))
    refuse(tensor, "too few dimensions");
  auto const rows = at_axis(tensor.shape, axes.out);
  auto const columns = at_axis(tensor.shape, axes.in);
  bool const by_block = has_blocks();
  bool const by_group = group_ > 0 && format_ != NumberFormat::fp8_channel;
  bool const words = format_ == NumberFormat::awq || format_ == NumberFormat::gptq;
  if (by_group && (by_block || words || !packs_outputs_)) {
    axes.in_unit = group_;
  } else if (by_group) {
    axes.out_unit = group_;
  } else if (columns == 1 && inputs_ > 1) {
    axes.in = -1;
  }
  if (axes.in >= 0 && columns != divide_up(inputs_, axes.in_unit)) {
    refuse(tensor, "expected one value per " + std::to_string(axes.in_unit) + " inputs");
  }
  if (rows != axes.out_length(outputs_)) {
    auto const values = axes.out_steps == 1 ? std::string("one value") : std::to_string(axes.out_steps) + " words";
    refuse(tensor, "expected " + values + " per " + std::to_string(axes.out_unit) + " outputs");
  }
  return axes;
}

}  // namespace crossrank::checkpoint
