#pragma once
#include <utility>

#include <nanobind/nanobind.h>

#include <crossrank/collective.hpp>

#include "interpreter.hpp"

namespace crossrank::python {

/// A non-blocking call, with the group that Ctrl-C aborts.
struct PendingCall {
  Collective group;
  Request request;

  PendingCall(Collective its_group, Request its_request) noexcept
      : group(std::move(its_group)), request(std::move(its_request)) {}
  PendingCall(PendingCall&& other) noexcept
      : group(std::move(other.group)),
        request(std::move(other.request)),
        has_ended(std::exchange(other.has_ended, true)) {}
  PendingCall& operator=(PendingCall&&) = delete;
  /// Dropping a request in progress, or the last handle of a group, may wait for another thread, which may need the
  /// GIL.
  ~PendingCall() {
    if (has_ended) return;
    ReleasedGil const released;
    request = Request();
    group = Collective();
  }

  bool has_ended = false;
};

/// Adds the non-blocking calls on several tensors at once.
void bind_fused_calls(nanobind::class_<Collective>& collective);

}  // namespace crossrank::python
