#pragma once
#include <array>
#include <cstddef>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/platform/fork_safe_condition.hpp"
#include "lib/platform/signals_blocked.hpp"

namespace crossrank::platform {

/// Starts a thread of the library, to which no signals are delivered. Throws `UnavailableError` if the system refuses
/// it.
template <class Body>
[[nodiscard]] std::thread start_thread(std::string const& operation, Body&& body) {
  SignalsBlocked const blocked;
  try {
    return std::thread(std::forward<Body>(body));
  } catch (std::system_error const& refused) {
    throw UnavailableError({.operation = operation,
                            .message = "no thread can be started",
                            .hint = "raise the limit of processes (ulimit -u, pids.max)",
                            .system_errno = refused.code().value()});
  }
}

/// Sets `stopping`, which `mutex` protects, wakes the thread from its wait for `changed`, and waits for its end.
inline void end_thread(std::thread& thread, std::mutex& mutex, bool& stopping, ForkSafeCondition& changed) noexcept {
  {
    std::lock_guard const lock(mutex);
    stopping = true;
  }
  changed->notify_all();
  if (thread.joinable()) thread.join();
}

/// Drops the handle of a thread that this process's parent has started. To detach it might detach a thread of this
/// process, to which the C library has given the same memory since the fork.
inline void forget_thread_of_parent(std::thread& thread) noexcept {
  alignas(std::thread) std::array<std::byte, sizeof(std::thread)> never_destroyed{};
  ::new (never_destroyed.data()) std::thread(std::move(thread));
}

}  // namespace crossrank::platform
