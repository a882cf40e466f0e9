#pragma once
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Throws `FormatError` if a source has flat parameters of FSDP's local state dicts.
///
/// A flat parameter is a slice of the concatenated parameters of a module. The files have neither their names nor their
/// shapes, so the model cannot be rebuilt.
void require_no_flat_parameters(ShardSet const& set);

}  // namespace crossrank::checkpoint
