#include "lib/codec/io/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/core/as_size.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/signals_blocked.hpp"

namespace crossrank::codec {
namespace {

// Bytes per thread from which another thread pays for itself.
constexpr std::uint64_t parallel_bytes = std::uint64_t{32} << 20;
constexpr std::size_t max_threads = 4;

constexpr std::size_t max_opening_threads = 16;
// A thread does not pay off for fewer files.
constexpr std::size_t files_per_thread = 4;

class ParallelRun {
 public:
  ParallelRun(std::size_t count, std::function<void(std::size_t)> const& work) : count_(count), work_(work) {}

  void run(std::size_t helpers) {
    {
      std::vector<std::jthread> threads;
      threads.reserve(helpers);
      try {
        platform::SignalsBlocked const blocked;
        while (threads.size() < helpers) threads.emplace_back([this] { take_all(); });
      } catch (std::system_error const&) {
        // If the system gives no more threads, the calling thread does the rest.
      }
      take_all();
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void take_all() noexcept {
    for (;;) {
      // relaxed: only hands out numbers; joining the threads orders their writes. They are handed out in order, so an
      // index below a failed one has always begun.
      auto const index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      try {
        work_(index);
      } catch (...) {
        next_.store(count_, std::memory_order_relaxed);
        std::lock_guard const lock(mutex_);
        if (error_ && failed_ < index) continue;
        error_ = std::current_exception();
        failed_ = index;
      }
    }
  }

  std::size_t count_;
  std::function<void(std::size_t)> const& work_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_{};
  std::exception_ptr error_{};
  std::size_t failed_ = 0;  ///< the index of the error
};

}  // namespace

void parallel_for(std::size_t count, std::uint64_t bytes, std::function<void(std::size_t)> const& work) {
  auto const processors = as_size(platform::usable_cpus());
  auto const threads = bytes < parallel_bytes ? 1 : std::min({max_threads, processors, count});
  ParallelRun(count, work).run(threads > 0 ? threads - 1 : 0);
}

void parallel_open(std::size_t count, std::function<void(std::size_t)> const& open) {
  auto const threads = std::min(max_opening_threads, count / files_per_thread);
  ParallelRun(count, open).run(threads > 0 ? threads - 1 : 0);
}

}  // namespace crossrank::codec
