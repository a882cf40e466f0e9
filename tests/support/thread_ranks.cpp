#include "tests/support/thread_ranks.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/message_ranks.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/spawn_rank.hpp"

namespace crossrank::test {
namespace {

/// Knows which threads still run. A hanging thread cannot be joined, so at the deadline the process aborts.
class Watch {
 public:
  explicit Watch(std::size_t count) : running_(count, true), left_(count) {}

  void ended(std::size_t index) {
    std::lock_guard const lock(mutex_);
    running_[index] = false;
    --left_;
    moved_.notify_all();
  }
  void wait(std::chrono::milliseconds deadline) {
    std::unique_lock lock(mutex_);
    if (moved_.wait_for(lock, deadline, [this] { return left_ == 0; })) return;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i])
        std::fprintf(stderr, "thread %zu still runs after %lld ms\n", i, static_cast<long long>(deadline.count()));
    }
    std::abort();
  }

 private:
  std::mutex mutex_{};
  std::condition_variable moved_{};
  std::vector<bool> running_;
  std::size_t left_;
};

/// Returns whether the ranks are to be on two hosts and exchange packets, instead of sharing one node.
bool on_two_hosts() {
  auto const* const where = std::getenv("CROSSRANK_TEST_RANKS");
  return where != nullptr && std::string_view(where) == "hosts";
}

}  // namespace

std::string text_of(std::exception_ptr const& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

namespace {

/// Returns the test's timeout, or one that only ends a hang if the test has not chosen any.
std::chrono::milliseconds timeout_of(ThreadRankOptions const& options) {
  return options.timeout == ThreadRankOptions{}.timeout ? step_timeout : options.timeout;
}

}  // namespace

ConnectOptions thread_options(int rank, int world_size, ThreadRankOptions const& options) {
  return {.backend = "shm",
          .timeout = timeout_of(options),
          .connect_timeout = step_timeout,
          .rank = rank,
          .world_size = world_size,
          .job_id = options.job_id,
          .rank_kind = RankKind::thread,
          .arena_cap = options.arena_cap};
}

std::vector<std::exception_ptr> run_threads(std::vector<std::function<void()>> const& actions,
                                            std::chrono::milliseconds deadline) {
  std::vector<std::exception_ptr> errors(actions.size());
  Watch watch(actions.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        actions[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
      watch.ended(i);
    });
  }
  watch.wait(scaled_timeout(deadline));
  for (auto& thread : threads) thread.join();
  return errors;
}

std::vector<std::exception_ptr> try_thread_ranks(int count, ThreadBody const& body, ThreadRankOptions options) {
  if (options.job_id.empty()) options.job_id = random_job_id();
  auto const hub = on_two_hosts() ? std::make_shared<MemoryHub>(count) : nullptr;
  MessageRankOptions const across{.timeout = timeout_of(options), .node_memory = true, .arena_cap = options.arena_cap};
  std::vector<std::function<void()>> actions;
  for (int rank = 0; rank < count; ++rank) {
    actions.emplace_back(
        [&, rank] { body(hub ? join_by_messages(hub, rank, across) : connect(thread_options(rank, count, options))); });
  }
  return run_threads(actions, options.deadline);
}

void run_thread_ranks(int count, ThreadBody const& body, ThreadRankOptions const& options) {
  auto const errors = try_thread_ranks(count, body, options);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank]) ADD_FAILURE() << "rank " << rank << " of " << count << ": " << text_of(errors[rank]);
  }
}

void run_driven_ranks(int count, ThreadBody const& body) {
  ThreadRankOptions const options{.job_id = random_job_id()};
  run_thread_ranks(
      count,
      [&](Collective const& world) {
        auto driven = thread_options(world.rank(), count, options);
        driven.progress = ProgressMode::thread;
        body(connect(driven));
      },
      options);
}

}  // namespace crossrank::test
