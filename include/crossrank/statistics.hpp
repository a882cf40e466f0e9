#pragma once
#include <cstdint>

#include <crossrank/export.hpp>

namespace crossrank {

/// Counters of what this process has done since it started.
struct Statistics {
  std::uint64_t bytes_copied = 0;   ///< by the library, from the caller's memory into an arena or out of one
  std::uint64_t futex_waits = 0;    ///< times a rank went to sleep
  std::uint64_t futex_wakes = 0;    ///< system calls to wake others
  std::uint64_t yields = 0;         ///< system calls to let others run
  std::uint64_t arena_growths = 0;  ///< times an arena took fresh pages
};

/// Returns the counters now. Local; costs a few loads.
[[nodiscard]] CROSSRANK_EXPORT Statistics statistics() noexcept;

}  // namespace crossrank
