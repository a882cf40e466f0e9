#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include <crossrank/spi/mapped_storage.hpp>

#include "lib/node/memory/arena.hpp"
#include "lib/node/rendezvous/rendezvous.hpp"
#include "lib/node/inspect/flight_recorder.hpp"
#include "lib/node/memory/group_blocks.hpp"
#include "lib/node/memory/control_layout.hpp"
#include "lib/node/memory/device_flight_layout.hpp"
#include "lib/node/memory/leases.hpp"
#include "lib/node/wait/spin_lock.hpp"

namespace crossrank::node {

class WatchdogThread;

/// The ranks of one job on one node, and the memory that they share.
///
/// Made by `join`, which all ranks of the node call. Groups, workspaces, tensors and their leases hold it; leases of
/// GPU memory do not. A rank leaves when the last of these is gone, or when the process exits. A rank that ends in any
/// other way is dead; the others notice within a tenth of a second.
class NodeComm : public std::enable_shared_from_this<NodeComm> {
 public:
  /// Joins the ranks of the node. Collective over them: blocks until all have called it.
  [[nodiscard]] static std::shared_ptr<NodeComm> join(NodeOptions const& options);
  ~NodeComm();
  NodeComm(NodeComm const&) = delete;
  NodeComm& operator=(NodeComm const&) = delete;

  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int ranks() const noexcept { return options_.ranks; }
  [[nodiscard]] ControlHeader& header() const noexcept { return *reinterpret_cast<ControlHeader*>(control()); }
  [[nodiscard]] RankRecord& record(int rank) const noexcept { return records()[rank]; }
  [[nodiscard]] RankRecord& own_record() const noexcept { return records()[options_.rank]; }
  [[nodiscard]] FlightRing& flight(int rank) const noexcept;
  [[nodiscard]] DeviceFlightRing& device_flight(int rank) const noexcept;
  /// Notes in the flight recorder an operation that this rank begins, for error messages and `crossrank inspect`. Costs
  /// a few stores. The first thread of the rank that calls it takes no lock; the others share one.
  void note(FlightOperation const& note) const noexcept;
  /// Counts as progress of this rank for the peers that wait for it.
  void count_progress() const noexcept { own_record().progress.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t progress() const noexcept {
    return own_record().progress.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Arena& arena() const noexcept { return *arena_; }
  [[nodiscard]] LeaseTable& leases() const noexcept { return *leases_; }
  /// Returns the memory of the lease words, for leases that may outlive this.
  [[nodiscard]] std::shared_ptr<Mapping> const& control_mapping() const noexcept { return attachment_.control; }
  /// Returns the first byte of a rank's arena in this process. Only this rank's own arena is writable.
  [[nodiscard]] std::byte const* arena_of(int rank) const noexcept;
  /// Returns the memory file and the offset of a byte of a rank's arena. The descriptor stays open as long as this.
  [[nodiscard]] spi::Backing backing_of(int rank, std::byte const* data) const noexcept;
  [[nodiscard]] std::size_t arena_bytes() const noexcept { return attachment_.arenas.front()->size(); }
  /// Returns the number of lease slots of each arena. The numbers of slots are below this.
  [[nodiscard]] std::uint32_t slot_capacity() const noexcept { return geometry_.slot_capacity(); }

  /// Returns true the first time that this process asks for a slot of a rank. Then it is worth mapping the pages at
  /// once.
  [[nodiscard]] bool first_read(int owner, std::uint32_t slot);

  /// Returns whether every rank of the node can have a CPU for itself. Only then does a wait begin with spinning.
  [[nodiscard]] bool may_spin() const noexcept { return may_spin_; }
  [[nodiscard]] bool threads() const noexcept { return options_.threads; }

  /// Returns false in a forked child. A child is not a rank and must not touch the memory that its parent shares.
  [[nodiscard]] bool is_own_process() const noexcept;
  /// Throws `UsageError` in a forked child.
  void require_own_process(char const* operation) const;

  /// Returns whether a rank has died or left, and records a death that no rank has seen yet. Costs two loads.
  [[nodiscard]] bool has_departed(int rank) const noexcept;
  /// Returns the same, and also detects a core dump in progress. For ranks that this rank waits for. Reads a file if
  /// the rank's watchdog thread has missed a heartbeat.
  [[nodiscard]] bool has_departed_slow(int rank) const noexcept;
  /// Returns whether a rank is recorded as dead, not as having left. Does not look for a new death: call `has_departed`
  /// for that. Costs one load.
  [[nodiscard]] bool is_dead(int rank) const noexcept;
  /// Describes a rank for error messages, for example "dead since 1.2 s (pid 4711), last in barrier round 17".
  [[nodiscard]] std::string describe(int rank) const;
  /// Returns the exit reason of a rank that ended by an exception; empty when it left none.
  [[nodiscard]] std::string exit_reason(int rank) const;

  [[nodiscard]] GroupBlocks& blocks() const noexcept { return *blocks_; }

  /// Publishes the reason why this process is about to end, and fails every group that it is in. Not async-signal-safe.
  /// Never throws.
  void set_exit_reason(std::string_view exit_text) noexcept;
  /// Counts the groups of this rank that are not closed.
  void add_open_group() noexcept { open_groups_.fetch_add(1, std::memory_order_relaxed); }
  void remove_open_group() noexcept { open_groups_.fetch_sub(1, std::memory_order_relaxed); }
  /// Returns whether a group or an end of a queue of this rank is not closed.
  [[nodiscard]] bool has_open_handles() const noexcept;
  /// Records that this rank leaves cleanly. Idempotent; called by the destructor and when the process exits.
  void leave() noexcept;

 private:
  struct ForkGuard;

  explicit NodeComm(NodeOptions options);
  void attach(Attachment attachment);
  void record_departure(int rank, AttachState how) const noexcept;
  void ring_groups_of(int rank) const noexcept;
  void ring_queue_of(int rank, std::uint32_t index) const noexcept;
  void decide_spinning() noexcept;
  [[nodiscard]] std::byte* control() const noexcept { return attachment_.control->data(); }
  [[nodiscard]] RankRecord* records() const noexcept {
    return reinterpret_cast<RankRecord*>(control() + geometry_.records_offset());
  }

  NodeOptions options_;
  ControlGeometry geometry_;
  Attachment attachment_;
  std::unique_ptr<ForkGuard> owner_;
  std::unique_ptr<LeaseTable> leases_;
  std::unique_ptr<GroupBlocks> blocks_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<WatchdogThread> watchdog_;
  bool may_spin_ = false;
  std::atomic<int> open_groups_{0};                         ///< orders nothing
  mutable std::atomic<std::thread::id> first_to_record_{};  ///< orders nothing
  mutable SpinLock flight_lock_{};                          ///< of the threads that record operations later
  std::mutex read_mutex_;
  std::unordered_set<std::uint64_t> read_before_;
};

/// Rings a doorbell, which wakes its owner if it sleeps. Before, the caller has changed the word that the owner waits
/// for, by a sequentially consistent read-modify-write.
void ring(std::atomic<std::uint32_t>& doorbell) noexcept;

}  // namespace crossrank::node
