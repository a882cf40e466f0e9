#pragma once
#include <cstdint>
#include <optional>

namespace crossrank::platform {

/// What the control groups that this process is in allow it, of both versions. Empty where nothing limits it.
struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes{};
  std::optional<int> cpus{};  ///< whole processors that the quota is worth, at least 1
};

/// Reads the limits of the process's own group and of all groups above it, and returns the smallest of each kind.
///
/// Inside a cgroup namespace or a container that is as far up as the mounted tree reaches. What cannot be read limits
/// nothing.
[[nodiscard]] CgroupLimits cgroup_limits() noexcept;

/// How many processors the threads of this process may keep busy: its affinity, within the quota, as of
/// the first call. At least 1.
[[nodiscard]] int usable_cpus() noexcept;

/// How many bytes of memory this process could have: the machine's, within the limit of its control groups.
[[nodiscard]] std::uint64_t usable_memory() noexcept;

}  // namespace crossrank::platform
