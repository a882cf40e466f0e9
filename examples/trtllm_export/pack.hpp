#pragma once
#include <crossrank/crossrank.hpp>

#include "examples/trtllm_export/merge.hpp"
#include "examples/trtllm_export/model.hpp"

namespace trtllm_export {

/// The tensors of a rank of the checkpoint under TensorRT-LLM's names: queries, keys and values in one, weights as
/// numbers of E4M3 in units of their scale. Local.
[[nodiscard]] xr::StateDict pack(Model const& model);

/// Its config.json: a model for `ranks` tensor-parallel ranks.
[[nodiscard]] xr::Json describe(Sizes const& sizes, int ranks);

}  // namespace trtllm_export
