#include "collectives/core/progress_thread.hpp"

#include <algorithm>
#include <chrono>

#include <sys/prctl.h>
#include <unistd.h>

#include "collectives/core/group_state.hpp"
#include "lib/platform/backoff.hpp"
#include "lib/platform/start_thread.hpp"

namespace crossrank::detail {
namespace {

constexpr platform::Backoff::Rule backoff_rule{.yields = 4, .shortest_sleep = std::chrono::microseconds(5)};

}  // namespace

ProgressThread::ProgressThread() : process_(::getpid()) {
  thread_ = platform::start_thread("connect", [this] { run(); });
}

ProgressThread::~ProgressThread() {
  if (process_ != ::getpid()) {
    platform::forget_thread_of_parent(thread_);
    return;
  }
  platform::end_thread(thread_, mutex_, stopping_, changed_);
}

void ProgressThread::add_once(GroupState& group) {
  if (std::find(with_work_.begin(), with_work_.end(), &group) == with_work_.end()) with_work_.push_back(&group);
}

void ProgressThread::add(GroupState& group) {
  {
    std::lock_guard const lock(mutex_);
    add_once(group);
  }
  changed_->notify_all();
}

void ProgressThread::remove(GroupState& group) noexcept {
  if (process_ != ::getpid()) return;
  std::unique_lock lock(mutex_);
  // The thread adds a group with more work again when its visit has ended, so the wait comes first.
  changed_->wait(lock, [&] { return visited_ != &group; });
  std::erase(with_work_, &group);
  std::erase(to_visit_, &group);
}

ProgressThread::Visits ProgressThread::visit_groups(std::unique_lock<std::mutex>& lock) {
  Visits visits;
  to_visit_.swap(with_work_);
  while (!to_visit_.empty()) {
    auto& group = *to_visit_.back();
    to_visit_.pop_back();
    visited_ = &group;
    lock.unlock();
    auto const made = group.make_progress();
    lock.lock();
    visited_ = nullptr;
    changed_->notify_all();
    visits.moved = visits.moved || made.moved;
    visits.unfinished = visits.unfinished || made.unfinished;
    if (made.left != GroupState::RemainingWork::nothing) add_once(group);
  }
  return visits;
}

void ProgressThread::run() noexcept {
  // The default timer slack would lengthen each short pause by 50 us.
  ::prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
  platform::Backoff backoff(backoff_rule);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_->wait(lock, [&] { return stopping_ || !with_work_.empty(); });
    if (stopping_) return;
    auto const visits = visit_groups(lock);
    if (visits.moved) backoff.restart();
    if (visits.moved || visits.unfinished) continue;
    lock.unlock();
    backoff.pause();
    lock.lock();
  }
}

}  // namespace crossrank::detail
