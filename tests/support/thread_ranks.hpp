#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::test {

struct ThreadRankOptions {
  std::string job_id{};                               ///< empty: random
  std::uint64_t arena_cap = std::uint64_t{64} << 20;  ///< bytes, for all ranks together
  std::chrono::milliseconds timeout{20'000};          ///< limit of every wait of the ranks
  std::chrono::milliseconds deadline{
      180'000};  ///< wall time after which the process aborts and names the running threads
};

using ThreadBody = std::function<void(Collective const& world)>;

/// Returns the options with which one thread joins a job of `world_size` threads.
[[nodiscard]] ConnectOptions thread_options(int rank, int world_size, ThreadRankOptions const& options);

/// Runs `body` on `count` ranks, each a thread that has connected. Returns the exception of each rank, or null.
[[nodiscard]] std::vector<std::exception_ptr> try_thread_ranks(int count, ThreadBody const& body,
                                                               ThreadRankOptions options = {});

/// Like `try_thread_ranks`, but an exception that leaves the body fails the test.
void run_thread_ranks(int count, ThreadBody const& body, ThreadRankOptions const& options = {});

/// Like `run_thread_ranks`, in a job whose groups have a progress thread.
void run_driven_ranks(int count, ThreadBody const& body);

/// Runs each of `actions` in its own thread. Aborts the process at the deadline.
[[nodiscard]] std::vector<std::exception_ptr> run_threads(
    std::vector<std::function<void()>> const& actions, std::chrono::milliseconds deadline = std::chrono::seconds(180));

/// Returns the text of an exception, or an empty string for null.
[[nodiscard]] std::string text_of(std::exception_ptr const& error);

}  // namespace crossrank::test
