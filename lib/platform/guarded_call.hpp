#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace crossrank::platform {

/// Limits of a guarded call.
struct CallGuard {
  std::chrono::nanoseconds limit{};   ///< longest time without a step; 0: runs in the caller's thread, unguarded
  std::function<void()> between{};    ///< called in every slice of the wait; may throw to abandon the call
  std::function<void()> abandoned{};  ///< called when the call has been abandoned
  std::string what{};                 ///< name of the call in the log
};

/// A running call, shared by the thread that executes it and the thread that waits for it.
class GuardedCall {
 public:
  /// Reports progress of the call, which restarts the limit.
  void step() noexcept { steps_.fetch_add(1, std::memory_order_relaxed); }

  /// Returns whether the caller has abandoned the call, so that its result will not be used.
  [[nodiscard]] bool was_abandoned() noexcept;

  /// Runs `work` in a thread of its own and waits. Returns false when it made no step for the whole limit and was
  /// abandoned.
  [[nodiscard]] static bool run(std::shared_ptr<GuardedCall> const& call, std::function<void()> work,
                                CallGuard const& guard);

 private:
  void finish(std::exception_ptr error) noexcept;
  /// Abandons the call, and waits until `limit` for its end: a call that sees it ends at its next step. Returns false
  /// if the call has ended.
  bool abandon(CallGuard const& guard, std::chrono::nanoseconds limit);

  std::atomic<std::uint64_t> steps_{0};
  std::mutex mutex_{};
  std::condition_variable ended_{};
  bool done_ = false;
  bool abandoned_ = false;
  bool left_behind_ = false;  ///< the caller does not wait any more
  std::exception_ptr error_{};
};

/// Returns the number of abandoned calls that have not ended.
[[nodiscard]] std::size_t abandoned_calls() noexcept;

/// Returns `body(call)`, or nothing when it made no step for `guard.limit`.
///
/// A system call on a hard NFS mount blocks in the kernel until the server answers, and only the end of the process can
/// interrupt it. So another thread makes the call, and the caller can abandon it in time. If the wait hook ends the
/// wait, the caller abandons the call with a `CancelledError`. `body` must own or share all objects that it uses,
/// because it may run forever.
template <class Body>
[[nodiscard]] auto guarded_call(Body body, CallGuard const& guard)
    -> std::optional<decltype(body(std::declval<GuardedCall&>()))> {
  using Result = decltype(body(std::declval<GuardedCall&>()));
  auto const call = std::make_shared<GuardedCall>();
  if (guard.limit.count() == 0) return body(*call);
  struct Work {
    Body body;
    std::optional<Result> result;
  };
  auto const work = std::make_shared<Work>(Work{std::move(body), std::nullopt});
  if (!GuardedCall::run(
          call, [work, call] { work->result.emplace(work->body(*call)); }, guard))
    return std::nullopt;
  return std::move(work->result);
}

}  // namespace crossrank::platform
