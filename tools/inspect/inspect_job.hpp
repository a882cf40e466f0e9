#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace crossrank::tools {

/// Which jobs `crossrank inspect` shows, and how.
struct InspectJobRequest {
  std::optional<std::string> job{};                  ///< id of the job; empty: all jobs of this user
  std::optional<int> pid{};                          ///< process id of one of its ranks
  std::optional<std::filesystem::path> directory{};  ///< directory of flight records; empty: running jobs only
  std::size_t last = 8;                              ///< number of operations shown per rank
  bool json = false;
};

/// Prints what the ranks of this machine's jobs are doing, or what they did last. Returns 0, or 1 when there is no such
/// job.
int inspect_jobs(InspectJobRequest const& request);

}  // namespace crossrank::tools
