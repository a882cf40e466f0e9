#pragma once
#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Returns an error for the whole set from the error of one tensor: which tensor-parallel ranks are missing, and the
/// names of their files if the other names show them.
[[nodiscard]] FormatError missing_ranks(ShardSet const& set, Error const& finding);

}  // namespace crossrank::checkpoint
