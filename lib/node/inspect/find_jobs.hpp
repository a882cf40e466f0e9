#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/node/memory/segment.hpp"

namespace crossrank::node {

/// A control segment that was found from outside its job, mapped read-only.
struct FoundJob {
  std::shared_ptr<Mapping> memory{};
  std::string where{};  ///< "pid 4711", or the path of a flight record

  [[nodiscard]] std::span<std::byte const> control() const noexcept { return {memory->data(), memory->size()}; }
};

/// Returns the jobs of this user's processes on this machine, one entry for each node communicator. With `pid` only
/// those of that process. `IoError` when that process cannot be inspected.
[[nodiscard]] std::vector<FoundJob> find_running_jobs(std::optional<int> pid);

/// Calls `visit` with process and path for each file that a process of this user has open and whose name contains
/// `name`.
void each_open_file(std::string_view name, std::function<void(int pid, std::string const& path)> const& visit);

/// Returns the flight records in a directory (see `CROSSRANK_FLIGHT_DIR`), of running and dead jobs.
[[nodiscard]] std::vector<FoundJob> find_flight_records(std::filesystem::path const& directory);

}  // namespace crossrank::node
