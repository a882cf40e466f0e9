#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crossrank::tools {

/// Returns the content of a file in /proc; empty when the process has ended, even between open and read.
[[nodiscard]] std::string process_text(std::filesystem::path const& file);

/// Returns the running children of this process, from /proc. With PR_SET_CHILD_SUBREAPER these include all orphans of
/// the ranks.
[[nodiscard]] std::vector<pid_t> child_processes();

}  // namespace crossrank::tools
