#pragma once
#include <vector>

#include "collectives/shm/device_records.hpp"
#include "collectives/spi/device_messages.hpp"
#include "lib/node/group/node_comm.hpp"

namespace crossrank::shm {

/// The outboxes of other ranks that this rank has open: the last one of each.
class DeviceInbox {
 public:
  explicit DeviceInbox(std::shared_ptr<node::NodeComm> comm) : comm_(std::move(comm)) {}

  /// Opens an outbox that `owner`, a rank of the node, has announced in a message that this rank has not taken yet.
  /// Closes its outbox before. When the driver refuses, the messages go on through host memory.
  void open(int owner, OutboxRecord const& announced);
  /// Takes the payload of `bytes` bytes that `where` describes. `slot` is the arena slot of `where`, in a message that
  /// this rank has not taken yet. Null memory when the record does not fit the outbox.
  [[nodiscard]] DevicePayload take(int owner, OutboxId slot, SlotRecord const& where, std::size_t bytes);
  /// Closes all outboxes, so that their owners can free them. Call it before the last barrier of the group.
  void close() noexcept { outboxes_.clear(); }

 private:
  struct Outbox {
    OutboxId id{};
    std::shared_ptr<spi::Storage> memory{};  ///< null: none, or refused
  };
  /// Takes a lease, which ends with the last copy of the result.
  [[nodiscard]] std::shared_ptr<void const> hold(int owner, OutboxId slot);

  std::shared_ptr<node::NodeComm> comm_;
  std::vector<Outbox> outboxes_{};  ///< by rank of the node
};

}  // namespace crossrank::shm
