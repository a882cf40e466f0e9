#include "workspace/checkpoint/source/for_each_index.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_threads_of_loop = 16;
// A thread does not pay off for fewer files.
constexpr std::size_t least_of_thread = 4;

/// The indexes that are left, and the first error.
class Loop {
 public:
  Loop(std::size_t count, std::function<void(std::size_t)> const& body) : count_(count), body_(body) {}

  void run() noexcept {
    // Indexes are handed out in order, so a lower index than a failed one has always begun.
    for (auto at = next_.fetch_add(1, std::memory_order_relaxed); at < count_;
         at = next_.fetch_add(1, std::memory_order_relaxed)) {
      try {
        body_(at);
      } catch (...) {
        std::lock_guard const lock(mutex_);
        if (!error_ || at < failed_) {
          error_ = std::current_exception();
          failed_ = at;
        }
        next_.store(count_, std::memory_order_relaxed);
      }
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::size_t count_;
  std::function<void(std::size_t)> const& body_;
  std::atomic<std::size_t> next_{0};  ///< hands out indexes; results are published by joining the threads
  std::mutex mutex_{};
  std::exception_ptr error_{};
  std::size_t failed_ = 0;
};

}  // namespace

void for_each_index(std::size_t count, std::function<void(std::size_t index)> const& body) {
  Loop loop(count, body);
  auto const threads = std::min(max_threads_of_loop, count / least_of_thread);
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads) others.emplace_back([&loop] { loop.run(); });
  } catch (std::system_error const&) {
    // The threads that did start do all the work.
  }
  loop.run();
  for (auto& thread : others) thread.join();
  loop.rethrow();
}

}  // namespace crossrank::checkpoint
