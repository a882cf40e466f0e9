#pragma once
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Returns whether it is a norm of the residual stream, so that the whole tensor is as wide as the model.
[[nodiscard]] bool is_norm_of_hidden(SourceTensor const& tensor);

/// Throws `FormatError`, with the names of two files, if the shards cannot be of one model: tensor-parallel ranks that
/// share no tensor name, or norms of different widths. Reads no data.
void require_one_model(ShardSet const& set);

}  // namespace crossrank::checkpoint
