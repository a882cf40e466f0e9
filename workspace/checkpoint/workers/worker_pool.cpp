#include "workspace/checkpoint/workers/worker_pool.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/objects/user_code_scope.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/platform/cgroup.hpp"
#include "lib/platform/memory_error.hpp"
#include "lib/platform/signals_blocked.hpp"

namespace crossrank::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto interval = std::chrono::milliseconds(100);
constexpr int max_default_threads = 4;

[[noreturn]] void throw_for_peer(std::string const& operation, int rank, std::span<std::byte const> encoded,
                                 Collective const& world) {
  auto [code, info] = decode_error(encoded);
  // An exception of the caller's code has a type of its own.
  if (code != ErrorCode::remote) info.remote_type = {};
  auto const happened = info.remote_type.empty() ? std::string(" failed") : " threw " + info.remote_type;
  info.message = code == ErrorCode::cancelled
                     ? "rank " + std::to_string(rank) + " was cancelled by its caller"
                     : "rank " + std::to_string(rank) + happened + ": " +
                           (info.operation.empty() ? "" : info.operation + ": ") + info.message;
  info.operation = operation;
  info.rank = world.rank();
  info.world_size = world.world_size();
  info.failed_ranks = {rank};
  world.transport()->note_peer_error(rank);
  throw_error(code, std::move(info));
}

/// The report of one rank in the exchange of errors. All ranks follow the lowest report.
enum class Report : std::uint8_t { failed, cancelled, nothing };

Report report_in(std::vector<std::byte> const& encoded) {
  if (encoded.empty()) return Report::nothing;
  return decode_error(encoded).code == ErrorCode::cancelled ? Report::cancelled : Report::failed;
}

/// Returns `error`, or for memory that was refused an error with the limits of this rank.
std::exception_ptr with_memory_limits(std::string const& operation, std::exception_ptr const& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (std::bad_alloc const&) {
    return std::make_exception_ptr(platform::memory_error(operation));
  } catch (...) {
    return error;
  }
  return error;
}

/// Exchanges errors and throws if any rank has one: the error of this rank, else that of the lowest rank. A cancelled
/// rank counts only if no other rank failed.
void throw_if_any_rank_failed(Collective const& world, std::string const& operation, std::exception_ptr const& found) {
  auto const mine = with_memory_limits(operation, found);
  if (world.world_size() == 1) {
    if (mine) std::rethrow_exception(mine);
    return;
  }
  auto const all = world.all_gatherv(mine ? encode_exception(mine) : std::vector<std::byte>());
  auto const first = std::ranges::min_element(all, {}, report_in);
  auto const report = report_in(*first);
  if (report == Report::nothing) return;
  if (mine && report_in(at_rank(all, world.rank())) == report) std::rethrow_exception(mine);
  throw_for_peer(operation, static_cast<int>(first - all.begin()), *first, world);
}

/// The worker threads of this rank.
class WorkerPool {
 public:
  WorkerPool(PoolWork& work, int count) {
    running_ = count;
    try {
      platform::SignalsBlocked const blocked;
      threads_.reserve(as_size(count));
      for (int i = 0; i < count; ++i) threads_.emplace_back([this, &work] { run(work); });
    } catch (std::system_error const& refused) {
      accept_fewer_threads(count, refused.code().value());
    } catch (std::bad_alloc const&) {
      accept_fewer_threads(count, ENOMEM);
    }
  }
  ~WorkerPool() {
    stop();
    join();
  }
  WorkerPool(WorkerPool const&) = delete;
  WorkerPool& operator=(WorkerPool const&) = delete;

  void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  /// Waits one interval or until all threads have ended. Returns whether they have.
  [[nodiscard]] bool wait_interval() {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, interval, [this] { return running_ == 0 || error_ != nullptr; }) && running_ == 0;
  }
  [[nodiscard]] std::exception_ptr error() {
    std::lock_guard const lock(mutex_);
    return error_;
  }

 private:
  /// Continues with fewer threads if some do not start; no thread at all is an error.
  void accept_fewer_threads(int wanted, int error) {
    std::lock_guard const lock(mutex_);
    running_ -= wanted - static_cast<int>(threads_.size());
    if (!threads_.empty()) return;
    error_ = std::make_exception_ptr(
        UnavailableError({.operation = "threads",
                          .message = "no thread can be started",
                          .hint = "raise the limit of processes (ulimit -u, pids.max) or of memory (ulimit -v)",
                          .system_errno = error}));
  }

  void run(PoolWork& work) noexcept {
    std::exception_ptr error;
    try {
      while (!stopped_.load(std::memory_order_relaxed) && work.step()) {
      }
    } catch (ExchangeStopped const&) {
      stop();
    } catch (...) {
      error = std::current_exception();
      stop();
    }
    std::lock_guard const lock(mutex_);
    if (error && !error_) error_ = error;
    --running_;
    ended_.notify_all();
  }

  std::mutex mutex_{};
  std::condition_variable ended_{};
  int running_ = 0;
  std::exception_ptr error_{};
  std::atomic<bool> stopped_{false};  ///< a hint between threads of one process; results combine by `join`
  std::vector<std::thread> threads_{};
};

/// The values that the ranks exchange at each interval.
struct PoolStatus {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  std::uint64_t finished = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t prepared = 0;  ///< for the next round of the exchange
};

PoolStatus combine(Collective const& world, PoolStatus const& mine) {
  std::array<std::uint64_t, 6> values{mine.done, mine.total, mine.finished, mine.failed, mine.cancelled, mine.prepared};
  if (world.world_size() > 1) world.all_reduce(std::span<std::uint64_t>(values), ReduceOp::sum);
  return {values[0], values[1], values[2], values[3], values[4], values[5]};
}

int thread_count(Collective const& world, int wanted) {
  if (wanted > 0) return std::min(wanted, max_threads);
  auto const cpus = platform::usable_cpus();
  // Two threads per CPU, because half of them wait for the disk.
  return std::clamp(2 * cpus / std::max(1, world.local_world_size()), 2, max_default_threads);
}

/// Stops the exchange before the threads of a pool are joined, whatever ends the pool.
class ExchangeStop {
 public:
  explicit ExchangeStop(PoolExchange* exchange) noexcept : exchange_(exchange) {}
  ~ExchangeStop() { stop(); }
  ExchangeStop(ExchangeStop const&) = delete;
  ExchangeStop& operator=(ExchangeStop const&) = delete;
  void stop() noexcept {
    if (exchange_ != nullptr) exchange_->stop();
  }

 private:
  PoolExchange* exchange_;
};

/// Prepares the next round. Returns whether this rank is prepared. Keeps a failure in `error`.
bool prepare(PoolExchange& exchange, std::exception_ptr& error) {
  try {
    return !error && exchange.prepare_round(interval);
  } catch (...) {
    error = std::current_exception();
    return false;
  }
}

/// Runs the round that was prepared. Keeps a failure of its local part in `error`.
void run_round(PoolExchange& exchange, Collective const& world, std::exception_ptr& error) {
  exchange.exchange_round(world);
  try {
    exchange.finish_round();
  } catch (...) {
    error = std::current_exception();
  }
}

}  // namespace

void run_worker_pool(Collective const& world, PoolWork& work, WorkerPoolOptions const& options) {
  auto const started = Clock::now();
  auto reported = started;
  std::exception_ptr error;
  WorkerPool workers(work, thread_count(world, options.threads));
  ExchangeStop exchange_stop(options.exchange);
  for (bool over = false; !over;) {
    if (!error) error = workers.error();
    bool const exchanging = options.exchange != nullptr && !options.exchange->over();
    bool const prepared = exchanging && prepare(*options.exchange, error);
    bool const finished = !exchanging && workers.wait_interval();
    if (!error) error = workers.error();
    auto const total = combine(world, {.done = work.bytes_done(),
                                       .total = work.bytes_total(),
                                       .finished = finished && !error ? 1U : 0U,
                                       .failed = error ? 1U : 0U,
                                       .cancelled = options.stop.stop_requested() ? 1U : 0U,
                                       .prepared = prepared ? 1U : 0U});
    bool const cancelled = total.cancelled > 0 && total.finished < static_cast<std::uint64_t>(world.world_size());
    over = total.failed > 0 || cancelled || total.finished == static_cast<std::uint64_t>(world.world_size());
    if (!over && total.prepared == static_cast<std::uint64_t>(world.world_size()))
      run_round(*options.exchange, world, error);
    // Without work there is no progress to report. Rounds of an exchange may be shorter than an interval.
    bool const due = over || Clock::now() - reported >= interval;
    if (world.rank() != 0 || !options.on_progress || !due || total.failed > 0 || total.total == 0) continue;
    reported = Clock::now();
    try {
      UserCodeScope const running(world);
      options.on_progress({.bytes_done = total.done,
                           .bytes_total = total.total,
                           .elapsed = Clock::now() - started,
                           .stage = options.stage});
    } catch (...) {
      error = std::current_exception();
    }
  }
  workers.stop();
  exchange_stop.stop();
  workers.join();
  if (!error) error = workers.error();
  // The last report of progress may have asked for the stop.
  if (!error && options.stop.stop_requested()) {
    error = std::make_exception_ptr(CancelledError({.operation = options.operation,
                                                    .message = "cancelled by the caller",
                                                    .rank = world.rank(),
                                                    .world_size = world.world_size()}));
  }
  throw_if_any_rank_failed(world, options.operation, error);
}

void agree(Collective const& world, std::string const& operation, std::function<void()> const& body) {
  std::exception_ptr error;
  try {
    UserCodeScope const running(world);
    body();
  } catch (...) {
    error = std::current_exception();
  }
  throw_if_any_rank_failed(world, operation, error);
}

}  // namespace crossrank::checkpoint
