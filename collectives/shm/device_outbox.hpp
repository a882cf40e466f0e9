#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

#include "collectives/shm/device_records.hpp"
#include "collectives/spi/device_messages.hpp"
#include "lib/node/group/node_comm.hpp"

namespace crossrank::shm {

/// Memory on this rank's GPU for the payloads of its messages, in slots of one size, which receivers open once.
///
/// Two leases on the outbox's arena slot tell that a rank has opened the memory, and one that it is about to. Each
/// slot has an arena slot too: a lease on it tells that the receiver's stream has not passed the copy. The leases of
/// dead ranks are void, so their slots are used again.
class DeviceOutbox {
 public:
  /// Makes an outbox for payloads of up to `bytes` bytes. Null when the memory cannot be shared, and when there is too
  /// little memory on the device or in the arena.
  [[nodiscard]] static std::unique_ptr<DeviceOutbox> make(std::shared_ptr<node::NodeComm> comm, Stream const& stream,
                                                          std::size_t bytes);
  /// Leaves the memory to the arena, which keeps it until all receivers have closed it.
  ~DeviceOutbox();
  DeviceOutbox(DeviceOutbox const&) = delete;
  DeviceOutbox& operator=(DeviceOutbox const&) = delete;

  /// Returns the length of a slot.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  /// Returns whether a rank of the node has opened the memory.
  [[nodiscard]] bool is_open_by(int node_rank) const noexcept;
  /// Returns the announcement for receivers that have not opened the memory.
  [[nodiscard]] OutboxRecord const& record() const noexcept { return record_; }
  /// Keeps the memory until `taken`: the announcement is on its way to a rank of the node.
  void announced_to(int node_rank, std::function<bool()> taken);
  /// Returns a slot that nobody uses; null when there is none.
  [[nodiscard]] std::shared_ptr<DeviceSlot> take();
  /// Returns whether a slot is in use that is not on its way yet.
  [[nodiscard]] bool is_lent() const noexcept;
  /// Returns the arena slot that describes a slot to its receiver.
  [[nodiscard]] node::Slot const& described_by(DeviceSlot const& slot) const { return entries_[slot.number].described; }
  /// Notes that the slot is on its way to a rank of the node, which uses it from `taken` on until it drops its lease.
  void sent(DeviceSlot const& slot, int node_rank, std::function<bool()> taken);
  /// Blocks until all receivers have taken their messages, for at most `limit`, and calls `poll` again and again.
  /// Returns whether they have.
  [[nodiscard]] bool wait_until_taken(std::chrono::nanoseconds limit, std::function<void()> const& poll) const;
  /// Blocks until all receivers that have taken their messages have copied them too, for at most `limit`.
  void wait_until_copied(std::chrono::nanoseconds limit, std::function<void()> const& poll) const;

 private:
  struct Entry {
    std::shared_ptr<DeviceSlot> slot;
    node::Slot described;
    std::function<bool()> taken{};  ///< of the last message; empty: none
    int reader = 0;                 ///< its receiver, a rank of the node
  };

  DeviceOutbox(std::shared_ptr<node::NodeComm> comm, std::size_t slot_bytes);
  void divide(std::shared_ptr<spi::Storage> const& storage, std::size_t slots);
  [[nodiscard]] bool is_idle(Entry const& entry) const;

  std::shared_ptr<node::NodeComm> comm_;
  std::size_t slot_bytes_;
  node::Slot anchor_{};
  OutboxRecord record_{};
  std::vector<Entry> entries_{};
  std::vector<std::function<bool()>> announced_{};  ///< by rank of the node
};

}  // namespace crossrank::shm
