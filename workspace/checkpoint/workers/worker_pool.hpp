#pragma once
#include <chrono>
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

/// Thrown by a unit of work that waits for data when the exchange stops. Ends its thread; the error that stopped the
/// exchange is reported.
struct ExchangeStopped {};

/// An exchange of data between the ranks while their threads work. It has rounds, in which all ranks take part.
class PoolExchange {
 public:
  virtual ~PoolExchange() = default;
  /// Returns whether no round is left. The same on all ranks.
  [[nodiscard]] virtual bool over() const noexcept = 0;
  /// Prepares the next round. Blocks for at most `limit` until this rank has memory for it; returns whether it has.
  [[nodiscard]] virtual bool prepare_round(std::chrono::milliseconds limit) = 0;
  /// Exchanges the bytes of the round that was prepared. Collective.
  virtual void exchange_round(Collective const& world) = 0;
  /// Hands on what the round has brought. Local; its error ends the pool on all ranks.
  virtual void finish_round() = 0;
  /// Makes the waits of the threads for data throw `ExchangeStopped`, because no further round follows.
  virtual void stop() noexcept = 0;
};

struct WorkerPoolOptions {
  std::string operation{};  ///< for messages
  int threads = 0;          ///< 0: by this rank's share of the CPUs, at most 4
  std::function<void(Progress const&)> on_progress{};
  std::stop_token stop{};
  std::string_view stage{};          ///< for `on_progress`; a literal
  PoolExchange* exchange = nullptr;  ///< runs between the ranks while the threads work; null: none
};

/// Runs the work until all units of all ranks are done, or until one rank fails or is cancelled.
///
/// Collective. The calling thread exchanges progress with the other ranks every 100 ms, which also shows them that this
/// rank is alive. It also runs the rounds of an exchange, each as soon as all ranks are prepared. A rank that failed
/// throws its own error. The other ranks throw an error of the same type that names the rank and the reason. All ranks
/// throw `CancelledError` when one rank was cancelled.
void run_worker_pool(Collective const& world, PoolWork& work, WorkerPoolOptions const& options);

/// Runs `body` on this rank and waits for the other ranks, for as long as they run theirs, up to the user limit. If it
/// failed on any rank, all ranks throw as in `run_worker_pool`. Collective.
void agree(Collective const& world, std::string const& operation, std::function<void()> const& body);

}  // namespace crossrank::checkpoint
