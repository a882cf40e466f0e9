#pragma once
#include <string>
#include <vector>

#include "workspace/checkpoint/source/torch/dcp_tensor.hpp"

namespace crossrank::checkpoint {

/// Returns the tensors of a `torch_dist` checkpoint as Megatron's modules have them: one for each layer and expert.
///
/// Megatron-core saves one tensor for all layers, "decoder.layers.mlp.linear_fc2.weight" with the layers along the
/// first dimension, and one for all experts, "mlp.experts.experts.linear_fc2.weight". They become
/// "decoder.layers.0.mlp.linear_fc2.weight" and "mlp.experts.local_experts.0.linear_fc2.weight". The two halves of a
/// gated layer ("weight_w", "weight_v") become one tensor.
///
/// A stack remains as it is if the lengths of its tensors differ. Throws `FormatError` if half a gated layer is
/// missing, or if two tensors get one name; `resource` names the checkpoint in errors.
[[nodiscard]] std::vector<DcpModelTensor> with_megatron_names(std::vector<DcpModelTensor> tensors,
                                                              std::string const& resource);

}  // namespace crossrank::checkpoint
