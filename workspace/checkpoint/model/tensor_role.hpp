#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace crossrank::checkpoint {

/// The role of a tensor in its layer.
enum class TensorRole : std::uint8_t {
  weight,          ///< the values, packed or not: weight, qweight, weight_packed, ..._blocks
  bias,            ///< one value per output
  weight_scale,    ///< scale per tensor, channel, group or block: weight_scale, scales, ..._scales
  weight_scale_2,  ///< scale of the scales
  global_scale,    ///< scale of the scales, stored as a divisor
  input_scale,     ///< scale of the input activations
  input_divisor,   ///< scale of the input activations, stored as a divisor
  output_scale,    ///< scale of the output activations
  zero_point,      ///< zero point of activations: input_zero_point
  pre_quant,       ///< smoothing factors, one per input
  zeros,           ///< zero points per group: qzeros, weight_zero_point
  group_ids,       ///< group of each input: g_idx
  weight_shape,    ///< the original shape, as two integers
  cache_scale,     ///< scale of the key/value cache
  low_rank_a,      ///< [rank, in]
  low_rank_b,      ///< [out, rank]
};

/// The parts of a tensor's name: "model.layers.0.mlp.up_proj.weight_scale" is the `weight_scale` of "...up_proj".
struct TensorName {
  std::string_view module{};  ///< the layer; the whole name if there is no known suffix
  TensorRole role = TensorRole::weight;
  std::string_view suffix{};  ///< as spelled, with its separator: ".weight_scale", "_blocks"; may be empty
};

/// Splits a name by the suffixes of ModelOpt, compressed-tensors, GPTQ, AutoAWQ, MXFP4 and TensorRT-LLM. An unknown
/// last element belongs to the layer's name. Does not throw.
[[nodiscard]] TensorName parse_tensor_name(std::string_view name);

/// Returns whether the tensor holds scales of weights, of activations or of the cache. Smoothing factors do not count.
[[nodiscard]] bool is_scale(TensorRole role) noexcept;

/// Returns the role in words, for messages: "weight scale".
[[nodiscard]] std::string_view to_string(TensorRole role) noexcept;

}  // namespace crossrank::checkpoint
