#pragma once
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "llama_sharding.hpp"
#include "source_model.hpp"

namespace tp_export {

/// The tensors that travel in one range: a layer, or everything outside the layers.
struct Unit {
  std::string name{};
  xr::StateDict weights{};
};

/// Reads only the part of the model that `rank` holds. All ranks get the same units in the same order.
[[nodiscard]] std::vector<Unit> read_shard(SourceModel const& source, LlamaSharding const& plan, int rank);

}  // namespace tp_export
