#pragma once
#include <vector>

#include <sys/types.h>

namespace crossrank::tools {

/// The living children of this process, from /proc. With PR_SET_CHILD_SUBREAPER that includes every orphan of the
/// ranks.
[[nodiscard]] std::vector<pid_t> living_children();

}  // namespace crossrank::tools
