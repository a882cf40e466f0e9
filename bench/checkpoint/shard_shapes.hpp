#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/json.hpp>
#include <crossrank/shape.hpp>

namespace crossrank::bench {

/// One tensor of a model that the benchmark makes up.
struct ModelTensor {
  std::string name{};
  Dtype dtype = Dtype::bf16;
  Shape shape{};
  int axis = -1;  ///< cut along it for the ranks; -1: every rank holds all of it
};

struct Model {
  std::vector<ModelTensor> tensors{};
  Json config = Json::object();        ///< config.json
  Json quantization = Json::object();  ///< hf_quant_config.json; empty for none
};

/// A Llama of 4096 hidden units with as many layers as come nearest to `bytes`: "bf16", or "nvfp4" as ModelOpt packs
/// it.
[[nodiscard]] Model llama(std::string const& kind, std::uint64_t bytes);

}  // namespace crossrank::bench
