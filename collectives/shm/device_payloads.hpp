#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include <crossrank/stream.hpp>

#include "collectives/shm/device_inbox.hpp"
#include "collectives/shm/device_outbox.hpp"
#include "collectives/spi/device_messages.hpp"
#include "lib/node/group/node_comm.hpp"

namespace crossrank::shm {

/// The payloads on GPUs of a rank's messages in one group: those in its own outbox, and those in the outboxes of other
/// ranks. All ranks are ranks of the node.
class DevicePayloads {
 public:
  explicit DevicePayloads(std::shared_ptr<node::NodeComm> comm) : comm_(std::move(comm)), inbox_(comm_) {}

  /// Returns memory for a message of `bytes` bytes to `dst`, another rank. Makes the outbox for the first long message,
  /// and a larger one when a message needs it. Null when the message must go through host memory.
  [[nodiscard]] std::shared_ptr<DeviceSlot> take_slot(Stream const& stream, std::size_t bytes, int dst);
  /// Returns the record that announces the outbox to `dst`. Null if `dst` has opened the outbox, or if this
  /// rank has none.
  [[nodiscard]] OutboxRecord const* announcement_to(int dst) const noexcept;

  /// Returns the outbox of a slot that `take_slot` has returned, or of an announcement.
  [[nodiscard]] DeviceOutbox& outbox() noexcept { return *outbox_; }
  [[nodiscard]] DeviceInbox& inbox() noexcept { return inbox_; }
  /// Lets the receivers take and copy the messages that this rank has sent, before its memory goes. Blocks for at most
  /// five seconds, and calls `poll` again and again. Logs a warning if a message has not been taken then.
  void flush(std::function<void()> const& poll) noexcept;

 private:
  std::shared_ptr<node::NodeComm> comm_;
  std::unique_ptr<DeviceOutbox> outbox_{};        ///< from the first long message on
  std::size_t no_outbox_from_ = ~std::size_t{0};  ///< length of payload for which there was no memory
  DeviceInbox inbox_;
};

/// Hands a payload to a receive, which keeps it in `to`, or takes a copy into `bytes` where `to` is null. The copy
/// blocks until it has ended.
void deliver(DevicePayload payload, DevicePayload* to, std::span<std::byte> bytes);

}  // namespace crossrank::shm
