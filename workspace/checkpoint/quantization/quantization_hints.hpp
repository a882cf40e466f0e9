#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// How one config group of compressed-tensors packs its weights.
struct WeightPacking {
  int bits = 0;
  std::int64_t group = 0;         ///< inputs that share a scale; 0: all of them
  bool activation_order = false;  ///< groups follow the order of activations

  bool operator==(WeightPacking const&) const = default;
};

/// The values for one layer in a quantization config. Zero and empty mean unknown.
struct LayerHints {
  std::string algorithm{};                ///< "NVFP4", "W4A16_AWQ", "gptq", ...
  std::int64_t group = 0;                 ///< inputs that share a scale
  std::int64_t block_out = 0;             ///< outputs of a block that shares a scale
  std::int64_t block_in = 0;              ///< inputs of a block that shares a scale
  std::int64_t likely_group = 0;          ///< inputs that share a scale in other layers; used if it fits the lengths
  bool whole_inputs = false;              ///< all inputs share a scale
  int bits = 0;                           ///< bits of a weight
  bool activation_order = false;          ///< groups follow the order of activations, not of the inputs
  std::vector<WeightPacking> packings{};  ///< of configs with several groups: the layer's shapes show which is its own
};

/// The contents of hf_quant_config.json, or of `quantization_config` in config.json (ModelOpt, compressed-tensors,
/// GPTQ, AutoAWQ, FP8, MXFP4).
class QuantizationHints {
 public:
  QuantizationHints() = default;
  /// Reads the configs. Does not throw; ignores values that it does not understand.
  QuantizationHints(Json const& config, Json const& quantization);

  /// Returns the hints for a layer.
  [[nodiscard]] LayerHints of(std::string_view module) const;

 private:
  LayerHints all_{};
  std::map<std::string, LayerHints, std::less<>> layers_{};  ///< hints per layer, for mixed precision
};

}  // namespace crossrank::checkpoint
