#pragma once
#include <crossrank/crossrank.hpp>

#include "merge.hpp"
#include "model.hpp"

namespace trtllm_export {

/// Returns the tensors of a checkpoint rank under TensorRT-LLM's names: queries, keys and values in one tensor, weights
/// as E4M3 numbers in units of their scale. Local.
[[nodiscard]] xr::StateDict pack(Model const& model);

/// Returns the config.json of a checkpoint for `ranks` tensor-parallel ranks.
[[nodiscard]] xr::Json describe(Sizes const& sizes, int ranks);

}  // namespace trtllm_export
