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

  /// Opens an outbox that `owner`, a rank of the node, has announced. Closes its outbox before. `lease` is one on the
  /// outbox, taken before the owner knew that this rank has the announcement. When the driver refuses, the messages go
  /// on through host memory.
  void open(int owner, OutboxRecord const& announced, std::shared_ptr<void const> lease);
  /// Returns the payload of `bytes` bytes that `where` describes. `lease` is one on its slot. Null memory when there is
  /// no lease, or the record does not fit the outbox.
  [[nodiscard]] DevicePayload find(int owner, SlotRecord const& where, std::size_t bytes,
                                   std::shared_ptr<void const> lease) const;
  /// Closes all outboxes, so that their owners can free them. Call it before the last barrier of the group.
  void close() noexcept { outboxes_.clear(); }

 private:
  struct Outbox {
    OutboxId id{};
    std::shared_ptr<spi::Storage> memory{};  ///< null: none, or refused
  };
  std::shared_ptr<node::NodeComm> comm_;
  std::vector<Outbox> outboxes_{};  ///< by rank of the node
};

/// Takes a lease on an outbox or on a slot in it, which ends with the last copy of the result. Null when the owner uses
/// the arena's slot for something else by now. The record that names it is in a message which this rank has not taken
/// yet. Any thread.
[[nodiscard]] std::shared_ptr<void const> hold(node::NodeComm const& comm, int owner, OutboxId slot);

}  // namespace crossrank::shm
