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
  std::string job_id{};                               ///< empty: a random one
  std::uint64_t arena_cap = std::uint64_t{64} << 20;  ///< for all ranks together, bytes
  std::chrono::milliseconds timeout{20'000};          ///< of every wait of the ranks
  std::chrono::milliseconds deadline{180'000};        ///< wall time after which the process ends, naming who still runs
};

using ThreadBody = std::function<void(Collective const& world)>;

/// Options with which one thread joins a job of `world_size` threads.
[[nodiscard]] ConnectOptions thread_options(int rank, int world_size, ThreadRankOptions const& options);

/// Runs `body` once for each of `count` ranks, each a thread that has connected: what each has thrown, null where
/// nothing.
[[nodiscard]] std::vector<std::exception_ptr> try_thread_ranks(int count, ThreadBody const& body,
                                                               ThreadRankOptions options = {});

/// The same; an exception that leaves the body is a failure of the test.
void run_thread_ranks(int count, ThreadBody const& body, ThreadRankOptions const& options = {});

/// Runs `actions`, each in a thread of its own, under the same watch.
[[nodiscard]] std::vector<std::exception_ptr> run_threads(
    std::vector<std::function<void()>> const& actions, std::chrono::milliseconds deadline = std::chrono::seconds(180));

/// The text of an exception; empty for none.
[[nodiscard]] std::string text_of(std::exception_ptr const& error);

}  // namespace crossrank::test
