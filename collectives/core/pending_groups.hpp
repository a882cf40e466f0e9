#pragma once
#include <memory>

namespace crossrank::detail {

struct GroupState;

/// Registers a group in which this thread has a pending operation. Until it ends, every wait of the thread, in any
/// group or queue, also advances that operation.
void register_pending_group(std::shared_ptr<GroupState> const& group);

}  // namespace crossrank::detail
