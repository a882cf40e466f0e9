#pragma once
#include <cstdint>

#include <crossrank/export.hpp>

namespace crossrank {

/// Counters of this process since its start.
struct Statistics {
  std::uint64_t bytes_copied = 0;   ///< copied by the library into an arena or out of one
  std::uint64_t futex_waits = 0;    ///< number of times that a rank went to sleep
  std::uint64_t futex_wakes = 0;    ///< system calls to wake other ranks
  std::uint64_t yields = 0;         ///< system calls to yield the processor
  std::uint64_t arena_growths = 0;  ///< number of times that an arena took new pages
};

/// Returns the current counters. Local; costs a few loads.
[[nodiscard]] CROSSRANK_EXPORT Statistics statistics() noexcept;

}  // namespace crossrank
