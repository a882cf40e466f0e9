#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/json.hpp>
#include <crossrank/tensor/shape.hpp>

namespace crossrank::bench {

/// One tensor of a generated model.
struct ModelTensor {
  std::string name{};
  Dtype dtype = Dtype::bf16;
  Shape shape{};
  int axis = -1;  ///< dimension along which the ranks split it; -1: every rank holds the whole tensor
};

struct Model {
  std::vector<ModelTensor> tensors{};
  Json config = Json::object();        ///< config.json
  Json quantization = Json::object();  ///< hf_quant_config.json; empty if there is none
};

/// Returns the shapes of a Llama with 4096 hidden units and as many layers as come closest to `bytes`. `kind` is
/// "bf16", or "nvfp4" as packed by ModelOpt.
[[nodiscard]] Model llama(std::string const& kind, std::uint64_t bytes);

}  // namespace crossrank::bench
