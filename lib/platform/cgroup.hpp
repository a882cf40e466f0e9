#pragma once
#include <cstdint>
#include <optional>

namespace crossrank::platform {

/// Limits of the control groups of this process, of both versions. Empty without a limit.
struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes{};
  std::optional<int> cpus{};  ///< quota in whole processors, at least 1
};

/// Reads the limits of the process's own group and of all groups above it, and returns the smallest of each kind.
///
/// Inside a cgroup namespace or a container, only the groups in the mounted tree count. A limit that cannot be read is
/// ignored.
[[nodiscard]] CgroupLimits cgroup_limits() noexcept;

/// Returns the number of processors that this process may use, from its affinity and its quota at the first call. At
/// least 1.
[[nodiscard]] int usable_cpus() noexcept;

/// Returns the memory that this process may use, in bytes: the machine's, or the limit of its control groups if lower.
[[nodiscard]] std::uint64_t usable_memory() noexcept;

/// Returns the part of `usable_memory` that is free now, in bytes. Memory of the page cache that the kernel can give
/// back counts as free.
[[nodiscard]] std::uint64_t free_memory() noexcept;

}  // namespace crossrank::platform
