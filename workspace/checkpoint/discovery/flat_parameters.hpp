#pragma once
#include "workspace/checkpoint/discovery/shard_set.hpp"

namespace crossrank::checkpoint {

/// Refuses the flat parameters of FSDP's local state dicts: vectors in which a module's parameters follow each other, a
/// slice on each rank. Neither their names nor their shapes are in the files, so that no model can be made of them.
/// `FormatError`.
void require_no_flat_parameters(ShardSet const& set);

}  // namespace crossrank::checkpoint
