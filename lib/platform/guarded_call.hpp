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

/// How long a guarded call may stand still.
struct CallGuard {
  std::chrono::nanoseconds limit{};  ///< without a step of the call; 0: it runs in the caller's thread, unguarded
  std::function<void()> between{};   ///< called in every slice of waiting; may throw to give the call up
  std::string what{};                ///< for the log, when it is left behind
};

/// A call while it runs; shared between the thread that makes it and the one that waits.
class GuardedCall {
 public:
  /// The call has got on: the limit counts anew.
  void step() noexcept { steps_.fetch_add(1, std::memory_order_relaxed); }

  /// Whether nobody waits for the call any more: what it has made, nobody will use.
  [[nodiscard]] bool was_abandoned() noexcept;

  /// Runs `work` in a thread of its own and waits. False when it stood still for the whole limit: it is left behind.
  [[nodiscard]] static bool run(std::shared_ptr<GuardedCall> const& call, std::function<void()> work,
                                CallGuard const& guard);

 private:
  void finish(std::exception_ptr error) noexcept;
  void abandon(CallGuard const& guard) noexcept;

  std::atomic<std::uint64_t> steps_{0};
  std::mutex mutex_{};
  std::condition_variable ended_{};
  bool done_ = false;
  bool abandoned_ = false;
  std::exception_ptr error_{};
};

/// Calls that were given up and have not ended yet.
[[nodiscard]] std::size_t abandoned_calls() noexcept;

/// `body(call)`, or nothing when it stood still for `guard.limit`.
///
/// A system call on a hard NFS mount blocks in the kernel until the server answers, and nothing ends it but the end of
/// the process. So it is made in another thread, and the caller goes away from it in time. What `body` uses must be its
/// own or shared: it may go on for ever.
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
