#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace crossrank::checkpoint {

/// What a tensor is to its layer.
enum class TensorRole : std::uint8_t {
  weight,          ///< the values, packed or not: weight, qweight, weight_packed, ..._blocks
  bias,            ///< one value per output
  weight_scale,    ///< scale per tensor, channel, group or block: weight_scale, scales, ..._scales
  weight_scale_2,  ///< scale of the scales
  global_scale,    ///< the same, stored as a divisor
  input_scale,     ///< of the activations that come in
  input_divisor,   ///< the same, stored as a divisor
  output_scale,    ///< of the activations that go out
  zero_point,      ///< of activations: input_zero_point
  pre_quant,       ///< smoothing factors, one per input
  zeros,           ///< zero points per group: qzeros, weight_zero_point
  group_ids,       ///< group of each input: g_idx
  weight_shape,    ///< the original shape, as two integers
  cache_scale,     ///< of the key/value cache
  low_rank_a,      ///< [rank, in]
  low_rank_b,      ///< [out, rank]
};

/// A tensor's name taken apart: "model.layers.0.mlp.up_proj.weight_scale" is the `weight_scale` of "...up_proj".
struct TensorName {
  std::string_view module{};  ///< the layer; for a parameter without a suffix of its own, the whole name
  TensorRole role = TensorRole::weight;
  std::string_view suffix{};  ///< as spelled, with what joins it to the layer: ".weight_scale", "_blocks"; may be empty
};

/// Takes a name apart by the suffixes of ModelOpt, compressed-tensors, GPTQ, AutoAWQ, MXFP4 and TensorRT-LLM. A last
/// element that is none of them belongs to the layer's name. Cannot fail.
[[nodiscard]] TensorName parse_tensor_name(std::string_view name);

/// "weight_scale", for messages.
[[nodiscard]] std::string_view to_string(TensorRole role) noexcept;

}  // namespace crossrank::checkpoint
