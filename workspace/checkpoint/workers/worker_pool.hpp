#pragma once
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>

namespace crossrank::checkpoint {

/// The work of the threads of one rank, in units.
class PoolWork {
 public:
  virtual ~PoolWork() = default;
  /// Does one unit. Returns false if no unit is left for this thread. May be called by any thread.
  virtual bool step() = 0;
  /// Return the bytes of all units of this rank, and the bytes of the finished units. May be called by any thread.
  [[nodiscard]] virtual std::uint64_t bytes_total() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_done() const noexcept = 0;
};

struct WorkerPoolOptions {
  std::string operation{};  ///< for messages
  int threads = 0;          ///< 0: by this rank's share of the CPUs, at most 4
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  std::string_view stage{};  ///< for `on_progress`; a literal
};

/// Runs the work until all units of all ranks are done, or until one rank fails or is cancelled.
///
/// Collective. The calling thread exchanges progress with the other ranks every 100 ms, which also shows them that this
/// rank is alive. A rank that failed throws its own error. The other ranks throw an error of the same type that names
/// the rank and the reason. All ranks throw `CancelledError` when one rank was cancelled.
void run_worker_pool(Collective const& world, PoolWork& work, WorkerPoolOptions const& options);

/// Runs `body` on this rank and waits for the other ranks. If it failed on any rank, all ranks throw as in
/// `run_worker_pool`. Collective.
void agree(Collective const& world, std::string const& operation, std::function<void()> const& body);

}  // namespace crossrank::checkpoint
