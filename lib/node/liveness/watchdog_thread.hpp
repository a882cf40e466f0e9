#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// Bit that the kernel sets in a liveness word when its thread has ended.
inline constexpr std::uint32_t owner_died_bit = 0x40000000;

/// The library's one thread of a rank: its end is the rank's death notification, and it watches the others.
///
/// The thread's id stands in the rank's liveness word, which is on the thread's own robust list: the kernel marks the
/// word and wakes a sleeper when the thread ends, whatever killed it, before any memory is torn down. Ten times a
/// second, and whenever the next living rank's word changes, it looks at all words and calls `on_death` for each that
/// is marked. Of the file system it asks about the next living rank alone: the watchdogs of a node together read one
/// file for each rank.
class WatchdogThread {
 public:
  struct Hooks {
    std::function<void(int rank)> on_death;  ///< once for each death that this thread sees first
    std::function<void()> on_heartbeat;      ///< ten times a second
  };

  /// Starts the thread; on return the liveness word is set. `UnavailableError` when the system refuses another thread.
  WatchdogThread(RankRecord* records, int rank, int ranks, Hooks hooks);
  /// Ends it. The caller has recorded that the rank left in order.
  ~WatchdogThread();
  WatchdogThread(WatchdogThread const&) = delete;
  WatchdogThread& operator=(WatchdogThread const&) = delete;

  /// All ranks are attached. Until this call the thread sleeps on no other rank's word, as it would miss whoever
  /// attaches after it has chosen one.
  void all_attached() noexcept;

  /// In a forked child: forgets the thread, which lives in the parent only.
  void abandon() noexcept;

 private:
  void run();
  void watch();
  [[nodiscard]] int next_alive() const noexcept;
  void look_at(int rank);

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

/// Whether the process of `record` writes its core dump: then it is dead, though its threads still exist. Reads a file.
[[nodiscard]] bool is_dumping_core(RankRecord const& record);

/// Whether the rank's watchdog has missed a heartbeat, as it has when the rank is stopped, starved, or dumps its core.
/// One load: asked before `is_dumping_core` by whoever may ask about many ranks. `now` is a time of the seam's clock.
[[nodiscard]] bool has_missed_heartbeat(RankRecord const& record, std::chrono::nanoseconds now);

/// Inode of this process's PID namespace: process ids mean nothing outside it. 0 where it cannot be told.
[[nodiscard]] std::uint64_t pid_namespace();

}  // namespace crossrank::node
