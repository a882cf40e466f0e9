#include <crossrank/collective.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "collectives/core/group_state.hpp"
#include "lib/core/max_wait.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

namespace crossrank {

using detail::GroupLockGuard;

Request::Request() noexcept = default;
Request::Request(Request&& other) noexcept = default;

Request::Request(std::shared_ptr<detail::GroupState> group, std::shared_ptr<detail::PendingOp> pending_op) noexcept
    : group_(std::move(group)), pending_op_(std::move(pending_op)) {}

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    drop();
    group_ = std::move(other.group_);
    pending_op_ = std::move(other.pending_op_);
    source_ = other.source_;
  }
  return *this;
}

Request::~Request() { drop(); }

namespace {

/// How long `wait_for` yields before it sleeps, without progress: a sleep takes 50 us at least, and a peer in the same
/// call takes its next step before that. At most this part of the limit, because callers repeat it.
constexpr auto longest_spin = std::chrono::microseconds(500);
constexpr int spin_part = 20;

/// Lets the current stream wait for the results of an ended call on device tensors.
void join_stream(detail::PendingOp const& pending_op) {
  if (!pending_op.on_device) return;
  auto const stream = current_stream(pending_op.on_device->stream().device());
  if (!(stream == pending_op.on_device->stream())) stream.wait(pending_op.on_device->ended());
}

}  // namespace

bool Request::test() {
  if (!pending_op_) return true;
  // The progress thread may be inside a long visit: this must not wait for it.
  bool const is_driven = pending_op_->is_queued && !group_->closed.load(std::memory_order_relaxed);
  if (is_driven && !pending_op_->ended) {
    group_->require_own_process(pending_op_->call.name());
    // The thread leaves calls on device tensors, and what waits behind them, to the threads that have started them.
    static_cast<void>(platform::ProgressHook::make_progress({}));
    return false;
  }
  {
    GroupLockGuard const guard(*group_, pending_op_->call.name());
    if (group_->test(*pending_op_)) return finish_on_device();
  }
  // Peers may first wait for calls of this thread in other groups.
  static_cast<void>(platform::ProgressHook::make_progress({}));
  return false;
}

bool Request::finish_on_device() {
  if (pending_op_->on_device) {
    bool const passed = pending_op_->on_device->is_captured() || pending_op_->on_device->ended().query();
    // A stream passes the end of a call that was ended early too, so check for a failure afterwards.
    group_->throw_device_failure(pending_op_->call.name());
    if (!passed) return false;
  }
  finish();
  return true;
}

void Request::wait() {
  if (pending_op_) wait_after({});
}

void Request::wait_after(std::chrono::nanoseconds waited) {
  GroupLockGuard const guard(*group_, pending_op_->call.name());
  auto policy = group_->policy_of(*pending_op_);
  policy.waited = waited;
  group_->wait(*pending_op_, policy);
  if (pending_op_->on_device) group_->throw_device_failure(pending_op_->call.name());
  join_stream(*pending_op_);
  finish();
}

void Request::finish() noexcept {
  if (auto const& source = pending_op_->call.message.source) source_ = *source;
  pending_op_.reset();
}

bool Request::wait_for(std::chrono::milliseconds limit) {
  auto& system = platform::system();
  auto const most = std::chrono::nanoseconds(std::clamp(limit, std::chrono::milliseconds::zero(), max_wait));
  auto const spin = std::min<std::chrono::nanoseconds>(longest_spin, most / spin_part);
  auto moved_at = system.now();
  auto idle_since = moved_at;
  auto const until = moved_at + most;
  for (platform::Backoff backoff; !test();) {
    auto const now = system.now();
    if (auto const progress = group_->transport->progress();
        std::exchange(pending_op_->progress, progress) != progress) {
      pending_op_->idle = {};
      moved_at = idle_since = now;
      backoff.restart();
    }
    auto const watched = group_->visit_to_watch(*pending_op_);
    if (watched == detail::GroupState::Watched::yes) {
      pending_op_->idle = {};
      idle_since = now;
    }
    auto const idle = pending_op_->idle + (now - idle_since);
    if (watched == detail::GroupState::Watched::no && idle >= group_->policy_of(*pending_op_).timeout &&
        !pending_op_->ended) {
      wait_after(idle);  // the transport decides which rank is late
      return true;
    }
    if (now >= until) {
      pending_op_->idle = idle;
      return false;
    }
    auto const longest = platform::ProgressHook::make_progress(backoff.next());
    if (now - moved_at < spin) {
      system.yield();
    } else {
      backoff.pause(std::min(until - now, longest));
    }
  }
  return true;
}

void Request::set_timeout(std::chrono::milliseconds timeout) noexcept {
  if (pending_op_) pending_op_->timeout = std::clamp(timeout, std::chrono::milliseconds::zero(), max_wait);
}

void Request::cancel() noexcept { abandon(false); }
void Request::drop() noexcept { abandon(true); }

void Request::abandon(bool dropped) noexcept {
  using detail::GroupState;
  if (pending_op_)
    group_->abandon(pending_op_, dropped ? GroupState::AbandonReason::dropped : GroupState::AbandonReason::cancelled);
  pending_op_.reset();
}

}  // namespace crossrank
