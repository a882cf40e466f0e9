#pragma once
#include <memory>

namespace crossrank::detail {

struct GroupState;

/// Remembers that this thread has something under way in the group: until it has ended, every wait of the thread
/// carries it on, in whatever group or queue that wait is.
void register_pending_group(std::shared_ptr<GroupState> const& group);

}  // namespace crossrank::detail
