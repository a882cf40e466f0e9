#pragma once
#include "workspace/checkpoint/open_sources.hpp"

namespace crossrank::checkpoint {

/// A set of one source whose name says that it is one rank's: that file must be the whole model as far as its config
/// gives sizes, else the other ranks' files are missing. Other sets pass. `FormatError` with the tensor that tells.
void refuse_lone_shard(ShardSet const& set);

}  // namespace crossrank::checkpoint
