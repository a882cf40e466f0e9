#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace crossrank::tools {

/// Which jobs `crossrank inspect` shows, and how.
struct InspectJobRequest {
  std::optional<std::string> job{};                  ///< its id; none: all of this user
  std::optional<int> pid{};                          ///< one of its processes
  std::optional<std::filesystem::path> directory{};  ///< of flight records; none: running jobs only
  std::size_t last = 8;                              ///< operations shown of each rank
  bool json = false;
};

/// Prints what the ranks of this machine's jobs are doing, or did last, to standard output. 0, or 1 when there is no
/// such job.
int inspect_jobs(InspectJobRequest const& request);

}  // namespace crossrank::tools
