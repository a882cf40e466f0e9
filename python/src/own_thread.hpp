#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "waiting.hpp"

namespace crossrank::python {

/// Starts a thread of its own for `work`. Returns false if the system has no thread to spare.
///
/// The thread gets no signals, because those are for Python's main thread.
[[nodiscard]] bool start_own_thread(std::function<void()> work);

/// The result of work in a thread of its own.
template <class Result>
class OwnThreadResult {
 public:
  template <class Work>
  void run(Work& work) noexcept {
    std::optional<Value> value;
    std::exception_ptr error;
    try {
      if constexpr (std::is_void_v<Result>) {
        work();
        value.emplace();
      } else {
        value.emplace(work());
      }
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const lock(mutex_);
    value_ = std::move(value);
    error_ = std::move(error);
    ended_ = true;
    changed_.notify_all();
  }
  /// Returns whether the work has ended, after at most `limit`.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return ended_; });
  }
  /// Returns the result, or throws the exception, of work that has ended.
  Result take() {
    if (error_) std::rethrow_exception(error_);
    if constexpr (!std::is_void_v<Result>) return std::move(*value_);
  }

 private:
  using Value = std::conditional_t<std::is_void_v<Result>, std::monostate, Result>;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::optional<Value> value_;
  std::exception_ptr error_;
};

/// Runs `work` without the GIL in a thread of its own. When a signal handler raises meanwhile, throws its exception at
/// once, whatever the file system does.
///
/// The thread then goes on alone, and nobody gets its result. So `work` owns or shares all that it uses.
template <class Work>
auto run_in_own_thread(Work work) {
  using Result = std::invoke_result_t<Work&>;
  constexpr std::chrono::milliseconds between_polls{20};
  struct Call {
    explicit Call(Work its_work) : work(std::move(its_work)) {}
    Work work;
    OwnThreadResult<Result> result{};
  };
  auto const call = std::make_shared<Call>(std::move(work));
  Wait wait([] {});
  {
    ReleasedGil const released;
    auto const run = [call] { call->result.run(call->work); };
    if (!start_own_thread(run)) run();
    while (!call->result.wait_for(between_polls) && !wait.has_raised()) wait.poll();
  }
  wait.rethrow();
  return call->result.take();
}

}  // namespace crossrank::python
