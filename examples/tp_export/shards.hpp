#pragma once
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "examples/tp_export/llama_sharding.hpp"
#include "examples/tp_export/source_model.hpp"

namespace tp_export {

/// The tensors that travel in one round: a layer, or what stands outside of the layers.
struct Unit {
  std::string name{};
  xr::StateDict weights{};
};

/// Reads what `rank` of a tensor-parallel job holds of the model, and no more. All ranks get the same units in the same
/// order.
[[nodiscard]] std::vector<Unit> read_shard(SourceModel const& source, LlamaSharding const& plan, int rank);

}  // namespace tp_export
