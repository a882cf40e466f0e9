#pragma once
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <type_traits>
#include <utility>

#include "waiting.hpp"

namespace crossrank::python {

/// Starts a thread of its own for `work`. Returns false if the system has no thread to spare.
///
/// The thread gets no signals, because those are for Python's main thread.
[[nodiscard]] bool start_own_thread(std::function<void()> work);

/// Runs `work` without the GIL in a thread of its own, in the order of the caller's current streams. When a signal
/// handler raises meanwhile, throws its exception at once, whatever the file system does.
///
/// The thread then goes on alone, and nobody gets its result. So `work` owns or shares all that it uses.
template <class Work>
auto run_in_own_thread(Work work) {
  constexpr std::chrono::milliseconds between_polls{20};
  auto in_order = [work = std::move(work), streams = find_streams()]() mutable {
    StreamScope const scope(streams);
    return work();
  };
  auto const call = std::make_shared<std::packaged_task<std::invoke_result_t<Work&>()>>(std::move(in_order));
  auto result = call->get_future();
  Wait wait([] {});
  {
    ReleasedGil const released;
    if (!start_own_thread([call] { (*call)(); })) (*call)();
    while (result.wait_for(between_polls) != std::future_status::ready && !wait.has_raised()) wait.poll();
  }
  wait.rethrow();
  return result.get();
}

}  // namespace crossrank::python
