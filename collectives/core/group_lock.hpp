#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <sys/types.h>
#include <unistd.h>

#include "lib/platform/system.hpp"

namespace crossrank::detail {

/// The lock of a group. A call of the user holds it for its whole length. Between calls, a thread of this rank that
/// waits elsewhere takes it for a moment to advance this group's operations.
class GroupLock {
 public:
  /// Takes the lock for a call. Returns false if another call holds it, or in a forked child a thread of the parent.
  [[nodiscard]] bool enter() noexcept {
    for (int attempt = 0;; ++attempt) {
      auto found = Use::none;
      if (use_.compare_exchange_weak(found, Use::call, std::memory_order_acquire)) break;  // partner: `leave`
      if (found == Use::none) continue;
      if (found != Use::visit) return false;     // in a call
      if (::getpid() != process_) return false;  // the visitor is a thread of the parent
      // This thread is the visitor: a function that the visit calls, such as the sink of the log, calls the group.
      if (holder_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return false;
      wait_for_visitor(attempt);
    }
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void leave() noexcept {
    holder_.store({}, std::memory_order_relaxed);  // the next holder stores its own id after this, in `enter`
    use_.store(Use::none, std::memory_order_release);
  }
  /// Takes the lock for a moment. Returns false if it is taken.
  [[nodiscard]] bool visit() noexcept {
    auto found = Use::none;
    if (!use_.compare_exchange_strong(found, Use::visit, std::memory_order_acquire)) {
      found = Use::open_call;
      if (!use_.compare_exchange_strong(found, Use::visit_in_call, std::memory_order_acquire)) return false;
    }
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void end_visit() noexcept {
    holder_.store({}, std::memory_order_relaxed);
    bool const in_call = use_.load(std::memory_order_relaxed) == Use::visit_in_call;
    use_.store(in_call ? Use::open_call : Use::none, std::memory_order_release);
  }
  /// Lets visitors in during a call of this thread, which uses nothing that they use until `end_visits`.
  void allow_visits() noexcept {
    holder_.store({}, std::memory_order_relaxed);
    use_.store(Use::open_call, std::memory_order_release);
  }
  /// Waits until no visitor is in, and lets no more in.
  void end_visits() noexcept {
    for (int attempt = 0;; ++attempt) {
      auto found = Use::open_call;
      if (use_.compare_exchange_weak(found, Use::call, std::memory_order_acquire)) break;
      wait_for_visitor(attempt);
    }
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  /// Returns whether any thread holds the lock for a call.
  [[nodiscard]] bool is_in_call() const noexcept {
    auto const use = use_.load(std::memory_order_relaxed);
    return use != Use::none && use != Use::visit;
  }
  /// Returns whether the calling thread holds the lock for a call.
  [[nodiscard]] bool is_held_by_this_thread() const noexcept {
    return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id() &&
           use_.load(std::memory_order_relaxed) == Use::call;
  }

 private:
  /// A visit may copy much: a waiting call leaves the CPU to it after some attempts.
  static void wait_for_visitor(int attempt) noexcept {
    constexpr int yields = 16;
    if (attempt < yields) return platform::system().yield();
    platform::system().sleep(std::chrono::microseconds(20));
  }

  enum class Use : std::uint8_t {
    none,
    call,
    open_call,     ///< a call that lets visitors in
    visit,         ///< between calls
    visit_in_call  ///< during a call that lets visitors in
  };
  pid_t const process_ = ::getpid();
  std::atomic<Use> use_{Use::none};
  std::atomic<std::thread::id> holder_{};
};

}  // namespace crossrank::detail
