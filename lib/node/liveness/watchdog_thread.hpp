#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// The bit that the kernel sets in a liveness word when its thread has ended.
inline constexpr std::uint32_t owner_died_bit = 0x40000000;

/// The library's one thread of a rank. Its end notifies the other ranks of this rank's death, and it watches the
/// others.
///
/// The thread's id is in the rank's liveness word, which is on the thread's robust list. When the thread ends for any
/// reason, the kernel marks the word and wakes a sleeper, before it releases any memory. The thread reads all words ten
/// times a second, and whenever the word of the next living rank changes. It calls `on_death` for each marked word. It
/// reads a file of `/proc` only for the next living rank, so the watchdogs of a node together read one file for each
/// rank.
class WatchdogThread {
 public:
  struct Hooks {
    std::function<void(int rank)> on_death;  ///< once for each death that this thread sees first
    std::function<void()> on_heartbeat;      ///< ten times a second
  };

  /// Starts the thread and returns when the liveness word is set. `UnavailableError` when the system refuses another
  /// thread.
  WatchdogThread(RankRecord* records, int rank, int ranks, Hooks hooks);
  /// Ends the thread. The caller has recorded that the rank left cleanly.
  ~WatchdogThread();
  WatchdogThread(WatchdogThread const&) = delete;
  WatchdogThread& operator=(WatchdogThread const&) = delete;

  /// Tells the thread that all ranks are attached. Before this call it does not sleep on another rank's word, because
  /// it would miss ranks that attach after it has chosen one.
  void all_attached() noexcept;

  /// Forgets the thread. Called in a forked child: the thread exists only in the parent.
  void abandon() noexcept;

 private:
  void run();
  void watch();
  [[nodiscard]] int next_alive() const noexcept;
  void check_rank(int rank);

  struct RobustListNode;

  RankRecord* records_;
  int rank_;
  int ranks_;
  Hooks hooks_;
  std::atomic<std::uint32_t> started_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> all_attached_{false};
  std::atomic<std::atomic<std::uint32_t>*> asleep_on_{nullptr};
  std::atomic<std::uint32_t> alone_{0};          ///< slept on while there is no other rank to sleep on
  std::unique_ptr<RobustListNode> robust_node_;  ///< read by the kernel when the thread ends: outlives it
  std::thread thread_;
};

/// Returns whether the process of `record` is writing its core dump. Such a process is dead, although its threads still
/// exist. Reads a file.
[[nodiscard]] bool is_dumping_core(RankRecord const& record);

/// Returns whether the rank's watchdog thread has missed a heartbeat. It has if the rank is stopped, gets no CPU, or
/// dumps its core. Costs one load; call it before `is_dumping_core` when there are many ranks. `now` is a time of
/// `platform::system()`.
[[nodiscard]] bool has_missed_heartbeat(RankRecord const& record, std::chrono::nanoseconds now);

}  // namespace crossrank::node
