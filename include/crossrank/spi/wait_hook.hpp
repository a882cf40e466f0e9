#pragma once
#include <chrono>

#include <crossrank/export.hpp>

namespace crossrank::spi {

/// Called by the caller's thread while it waits inside the library, before each sleep and never under a lock of the
/// library. Returns how long the thread may sleep before the next call. It may abort a group or request a stop, which
/// ends the wait. A negative value ends a wait that has no group to abort. Inside `connect` the start then fails on all
/// ranks with a `PeerLostError` that names this one. A wait for a GPU or a file system is a `CancelledError`.
using WaitHook = std::chrono::nanoseconds (*)() noexcept;

/// Sets the function that all waits of this process call, for language bindings that must check for signals. Local.
///
/// Call it once, before the first wait. An unset hook costs each wait one load.
CROSSRANK_EXPORT void set_wait_hook(WaitHook hook) noexcept;

}  // namespace crossrank::spi
