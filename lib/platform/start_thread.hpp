#pragma once
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <crossrank/error.hpp>

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

}  // namespace crossrank::platform
