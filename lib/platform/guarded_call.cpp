#include "lib/platform/guarded_call.hpp"

#include <system_error>
#include <thread>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/signals_blocked.hpp"

namespace crossrank::platform {
namespace {

constinit std::atomic<std::size_t> left_behind{0};
/// How long a call that its caller gives up may take to notice it.
constexpr auto time_to_notice = std::chrono::milliseconds(300);

}  // namespace

std::size_t abandoned_calls() noexcept { return left_behind.load(std::memory_order_acquire); }

bool GuardedCall::run(std::shared_ptr<GuardedCall> const& call, std::function<void()> work, CallGuard const& guard) {
  try {
    SignalsBlocked const blocked;
    std::thread([call, work = std::move(work)]() mutable {
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      work = nullptr;  // destroy its objects before the caller, or a counter, is notified
      call->finish(std::move(error));
    }).detach();
  } catch (std::system_error const& e) {
    throw_io("start a thread for " + guard.what, "thread", e.code().value(), "raise ulimit -u");
  }
  Deadline deadline(guard.limit);
  auto seen = call->steps_.load(std::memory_order_relaxed);
  std::unique_lock lock(call->mutex_);
  while (!call->ended_.wait_for(lock, Deadline::slice, [&] { return call->done_; })) {
    lock.unlock();
    auto const now = call->steps_.load(std::memory_order_relaxed);
    if (now != std::exchange(seen, now)) {
      deadline.progress();
    } else {
      deadline.tick();
    }
    try {
      if (ProgressHook::poll() < std::chrono::nanoseconds::zero())
        throw CancelledError({.operation = guard.what, .message = "the wait for the file system was interrupted"});
      if (guard.between) guard.between();
    } catch (...) {
      call->abandon(guard, time_to_notice);
      throw;
    }
    if (deadline.expired() && call->abandon(guard, {})) return false;
    lock.lock();
  }
  // The other thread may outlive this one's use of the exception, and must not be the one that destroys it.
  if (call->error_) std::rethrow_exception(std::exchange(call->error_, nullptr));
  return true;
}

bool GuardedCall::was_abandoned() noexcept {
  std::lock_guard const lock(mutex_);
  return abandoned_;
}

void GuardedCall::finish(std::exception_ptr error) noexcept {
  bool late = false;
  {
    std::lock_guard const lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    late = left_behind_;
  }
  ended_.notify_one();
  if (late) left_behind.fetch_sub(1, std::memory_order_acq_rel);
}

bool GuardedCall::abandon(CallGuard const& guard, std::chrono::nanoseconds limit) {
  {
    std::unique_lock lock(mutex_);
    if (done_) return false;
    abandoned_ = true;
    if (ended_.wait_for(lock, limit, [this] { return done_; })) return false;
    left_behind_ = true;
    left_behind.fetch_add(1, std::memory_order_acq_rel);
  }
  log_event(LogLevel::error, "a file system call does not return; its thread was abandoned",
            {{"call", guard.what}, {"abandoned in all", std::to_string(abandoned_calls())}});
  if (guard.abandoned) guard.abandoned();
  return true;
}

}  // namespace crossrank::platform
