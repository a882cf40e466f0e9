#pragma once
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// What the worker threads of one rank do, unit after unit.
class PoolWork {
 public:
  virtual ~PoolWork() = default;
  /// Does one unit; false when none is left for this thread. Any thread.
  virtual bool step() = 0;
  /// Bytes that all units together move on this rank, and how many of them have been moved. Any thread.
  [[nodiscard]] virtual std::uint64_t bytes_total() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_done() const noexcept = 0;
};

struct WorkerPoolOptions {
  std::string operation{};  ///< for messages
  int threads = 0;          ///< 0: as many as this rank's share of the machine gives, 4 at most
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  std::string_view stage{};  ///< for `on_progress`; a literal
};

/// Works until all units of all ranks are done, or one rank has failed or is to stop: then all leave with an error.
///
/// Collective. The calling thread meets the other ranks every 100 ms, passes totals on and tells them that this rank is
/// alive. The rank that failed throws its own error, the others one of the same kind that says which rank and why.
/// `CancelledError` on all ranks when one was asked to stop.
void run_worker_pool(Collective const& world, PoolWork& work, WorkerPoolOptions const& options);

/// Runs `body` on this rank (which may be a part of the group) and meets the others: when it failed anywhere, all
/// throw, as in `run_worker_pool`. Collective.
void agree(Collective const& world, std::string const& operation, std::function<void()> const& body);

}  // namespace crossrank::checkpoint
