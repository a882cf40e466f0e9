#pragma once
#include <cstdint>
#include <thread>

#include <crossrank/statistics.hpp>

namespace crossrank::test {

/// Returns once a thread of this process has gone to sleep in the library since `statistics().futex_waits` was
/// `before`.
inline void await_sleeper(std::uint64_t before) {
  while (statistics().futex_waits == before) std::this_thread::yield();
}

}  // namespace crossrank::test
