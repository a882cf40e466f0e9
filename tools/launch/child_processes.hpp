#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crossrank::tools {

/// What a file of /proc holds; empty when its process has ended, also between opening and reading.
[[nodiscard]] std::string process_text(std::filesystem::path const& file);

/// The living children of this process, from /proc. With PR_SET_CHILD_SUBREAPER that includes every orphan of the
/// ranks.
[[nodiscard]] std::vector<pid_t> child_processes();

}  // namespace crossrank::tools
