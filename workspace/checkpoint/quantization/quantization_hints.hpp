#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// What a quantization config says of one layer.
struct LayerHints {
  std::string algorithm{};     ///< "NVFP4", "W4A16_AWQ", "gptq", ...; empty when nothing is said
  std::int64_t group = 0;      ///< inputs that share a scale; 0: not said
  std::int64_t block_out = 0;  ///< outputs and inputs of a block that shares a scale; 0: not said
  std::int64_t block_in = 0;
  std::int64_t likely_group = 0;  ///< inputs that share a scale in the other layers; holds where the lengths fit
  bool whole_inputs = false;      ///< it is said that all inputs share a scale
  int bits = 0;                   ///< bits of a weight; 0: not said
  bool activation_order = false;  ///< groups follow the order of activations, not of the inputs
};

/// hf_quant_config.json, or `quantization_config` of config.json (ModelOpt, compressed-tensors, GPTQ, AutoAWQ, FP8,
/// MXFP4).
class QuantizationHints {
 public:
  QuantizationHints() = default;
  /// Free of errors: what is not understood is not said.
  QuantizationHints(Json const& config, Json const& quantization);

  /// Of a layer by its name.
  [[nodiscard]] LayerHints of(std::string_view module) const;

 private:
  LayerHints all_{};
  std::map<std::string, LayerHints, std::less<>> layers_{};  ///< mixed precision
};

}  // namespace crossrank::checkpoint
