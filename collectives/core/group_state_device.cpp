#include "collectives/core/group_state.hpp"

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/own_part.hpp"
#include "collectives/core/with_operation_name.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::detail {
namespace {

/// How many calls the host may be ahead of the slowest rank, whose streams wait for their comparisons.
constexpr std::size_t most_comparisons = 255;
/// How long a group that an exception ends waits for them.
constexpr auto comparison_grace = std::chrono::milliseconds(5'000);

}  // namespace

void GroupState::decide_on_device(algorithms::Call const& call) {
  if (devices.is_decided() || spi::is_message(call.signature.op_kind)) return;
  require_allowed(call.name());
  complete_collectives();
  with_operation_name(call.name(), [&] { devices.decide(call, check, *transport, timeout_policy); });
}

void GroupState::throw_device_failure(char const* operation) {
  if (!devices.has_failed()) return;
  try {
    with_operation_name(operation, [&] { devices.throw_failure(); });
  } catch (Error const& e) {
    end_and_rethrow(e);
  }
}

bool GroupState::holds_stream(algorithms::Call const& call) {
  return devices.holds_stream(call, check) && comparing_thread() != nullptr;
}

std::unique_ptr<device::DeviceCall> GroupState::begin_on_device(algorithms::Call const& call, bool is_held) {
  if (!is_held && comparisons_ > 0) complete_collectives();
  std::unique_ptr<device::DeviceCall> begun;
  do_own_part(call.name(), [&] {
    // The driver may block until the streams continue.
    std::optional<VisitorsScope> visitors;
    if (is_held) visitors.emplace(group_lock);
    begun = devices.begin(call, *transport, check);
  });
  return begun;
}

void GroupState::enqueue_held(device::DeviceCall& on_device, char const* operation) {
  require_allowed(operation);
  while (comparisons_ >= most_comparisons) step_first(timeout_policy);
  auto const comparison = std::make_shared<PendingOp>(on_device.on_host(timeout_policy.timeout));
  comparison->on_compared = on_device.hold();
  pending_collectives.push_back(comparison);
  ++comparisons_;
  advance();
  if (comparison->ended && comparison->failure) {
    on_device.release_position();
    with_operation_name(operation, [&] { std::rethrow_exception(comparison->failure); });
  }
  comparing_thread()->add(*this);
  try {
    wait_to_enqueue(on_device, operation, timeout_policy);
    VisitorsScope const visitors(group_lock);
    on_device.finish();
  } catch (std::exception const& e) {
    end_and_rethrow(e);  // the other ranks would wait for this one
  }
}

void GroupState::end_comparison(PendingOp& pending_op) noexcept {
  --comparisons_;
  if (pending_op.failure) {
    try {
      std::rethrow_exception(pending_op.failure);
    } catch (std::exception const& e) {
      end_because_of(e);
    }
  }
  pending_op.on_compared(pending_op.failure);
}

void GroupState::end_all_comparisons() noexcept {
  if (process_ != ::getpid() || pending_collectives.empty()) return;
  platform::Deadline deadline(std::uncaught_exceptions() == 0 ? timeout_policy.timeout : comparison_grace);
  for (platform::Backoff backoff; !pending_collectives.empty() && !deadline.expired(); backoff.pause()) {
    if (advance()) backoff.restart();
    deadline.tick();
  }
  if (!pending_collectives.empty()) abort("the group ends before the other ranks have made its calls");
}

ProgressThread* GroupState::comparing_thread() noexcept {
  if (progress_thread) return progress_thread.get();
  try {
    if (!comparing_thread_) comparing_thread_ = std::make_unique<ProgressThread>();
  } catch (std::exception const&) {
    return nullptr;
  }
  return comparing_thread_.get();
}

void GroupState::do_own_part(char const* operation, std::function<void()> const& step) {
  try {
    step();
  } catch (UsageError const&) {  // the rank may call again with other arguments
    throw;
  } catch (Error const& e) {
    try {
      throw_error(e.code(), own_part_failure(e, operation, *transport));
    } catch (Error const& failure) {
      end_and_rethrow(failure);
    }
  } catch (std::exception const& e) {
    end_and_rethrow(e);
  }
}

void GroupState::run_on_device(algorithms::Call&& call) {
  decide_on_device(call);
  auto const* const operation = call.name();
  auto const pieces = devices.pieces(std::move(call));
  bool const is_held = holds_stream(pieces.front());
  auto next = begin_on_device(pieces.front(), is_held);
  if (is_held) return enqueue_held(*next, operation);
  bool begun = false;
  try {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto const current = std::move(next);
      algorithms::Call on_host;
      do_own_part(operation, [&] {
        on_host = current->on_host(timeout_policy.timeout);
        if (i + 1 < pieces.size()) next = devices.begin(pieces[i + 1], *transport, check);
      });
      with_operation_name(on_host.name(), [&] { run(std::move(on_host)); });
      begun = true;
      wait_to_enqueue(*current, operation, timeout_policy);
      current->finish();
    }
  } catch (std::exception const& e) {
    if (begun) end_and_rethrow(e);  // the other ranks would wait for the next piece
    throw;
  }
}

void GroupState::wait_to_enqueue(device::DeviceCall& on_device, char const* operation,
                                 spi::TimeoutPolicy const& policy) {
  platform::Deadline deadline(policy.timeout, policy.waited);
  platform::Backoff backoff;
  while (!on_device.is_next_to_enqueue()) {
    auto const longest = platform::ProgressHook::make_progress(backoff.next());
    if (on_device.is_next_to_enqueue()) return;
    backoff.pause(longest);
    deadline.tick();
    if (!deadline.expired()) continue;
    auto info = usage_in(
        *transport, operation,
        "an earlier call of this thread on the GPU has not been made by all its ranks: " + on_device.next_to_enqueue());
    info.expected = "within " + std::to_string(policy.timeout.count()) + " ms";
    info.hint = "all ranks must make the collectives of several groups on GPU tensors in the same order";
    info.group_usable = false;
    throw TimeoutError(std::move(info));
  }
}

void GroupState::finish_on_device(PendingOp& pending_op) {
  auto& on_device = *pending_op.on_device;
  try {
    pending_op.capture->require(on_device.stream(), pending_op.call.name());
    on_device.finish();
  } catch (std::exception const& e) {
    end_and_rethrow(e);  // the other ranks would wait for this one
  }
}

}  // namespace crossrank::detail
