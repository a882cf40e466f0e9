#include <cstring>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "collectives/shm/shm_transport.hpp"

/// Messages between GPUs. The sender's GPU copies the payload into its outbox, and the receiver's copies it from there.
///
/// A receiver opens an outbox when a message through host memory announces it, so that the sender knows before it sends
/// whether the receiver can.
namespace crossrank::shm {
namespace {

OutboxId id_of(node::Channel::Message const& message) {
  return {.generation = message.generation, .slot = message.slot & slot_number};
}

}  // namespace

std::shared_ptr<DeviceSlot> ShmTransport::take_device_slot(Stream const& stream, std::size_t bytes, int dst) {
  return dst == rank() ? nullptr : device_payloads_.take_slot(stream, bytes, group_->node_rank(dst));
}

spi::RequestId ShmTransport::post_device_send(std::shared_ptr<DeviceSlot> slot, std::size_t bytes, int dst,
                                              std::uint32_t tag) {
  std::span<std::byte const> const payload(slot->data, bytes);
  auto const request_id = begin_message(
      {.payload = spi::Source{.bytes = payload}, .peer = dst, .tag = tag, .device_slot = std::move(slot)});
  advance_messages();
  return request_id;
}

spi::RequestId ShmTransport::post_device_recv(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                              std::shared_ptr<DevicePayload> found) {
  return begin_message({.payload = std::move(bytes),
                        .peer = src,
                        .tag = tag,
                        .source = std::move(source),
                        .on_device = std::move(found)});
}

void ShmTransport::place_device_payload(MessageOp const& op, std::uint64_t number, node::Channel::Message& message) {
  auto& outbox = device_payloads_.outbox();
  auto const& where = outbox.described_by(*op.device_slot);
  message.offset = where.offset;
  message.slot = where.id | payload_on_device;
  message.generation = where.generation;
  outbox.sent(*op.device_slot, group_->node_rank(op.peer), group_->message_taken(op.peer, number));
}

void ShmTransport::take_device_payload(MessageOp& op, int src, node::Channel::Message const& message) {
  auto const owner = group_->node_rank(src);
  SlotRecord where;
  std::memcpy(&where, group_->payload(src, message.offset, sizeof where).data(), sizeof where);
  auto found =
      device_payloads_.inbox().find(owner, where, message.bytes, hold(*group_->shared_comm(), owner, id_of(message)));
  if (group_->comm().has_departed(owner)) {
    group_->fail(node::Verdict::aborted, "its message was in the memory of its GPU, which has gone with it", {src});
    group_->throw_if_failed(op.name());
  }
  if (!found.memory)
    group_->fail_corrupt(op.name(), "payload on the GPU of rank " + std::to_string(src),
                         std::to_string(message.bytes) + " bytes in its announced memory",
                         "offset " + std::to_string(where.offset));
  deliver(std::move(found), op.on_device.get(), std::get<spi::Sink>(op.payload).bytes);
}

std::size_t ShmTransport::announcement_bytes(int dst, std::size_t payload_bytes) const noexcept {
  if (dst == rank() || device_payloads_.announcement_to(group_->node_rank(dst)) == nullptr) return 0;
  return announcement_offset(payload_bytes) + sizeof(OutboxRecord);
}

void ShmTransport::announce_outbox(int dst, std::size_t payload_bytes, std::uint64_t number, node::Slot const& slot,
                                   node::Channel::Message& message) {
  auto& outbox = device_payloads_.outbox();
  std::memcpy(group_->comm().arena().at(slot) + announcement_offset(payload_bytes), &outbox.record(),
              sizeof(OutboxRecord));
  message.slot |= announces_device;
  outbox.announced_to(group_->node_rank(dst), group_->message_taken(dst, number));
}

void ShmTransport::open_announced(int src, node::Channel::Message const& message) {
  OutboxRecord announced;
  auto const behind = group_->payload(src, message.offset + announcement_offset(message.bytes), sizeof announced);
  std::memcpy(&announced, behind.data(), sizeof announced);
  auto const owner = group_->node_rank(src);
  device_payloads_.inbox().open(owner, announced, hold(*group_->shared_comm(), owner, announced.id));
}

}  // namespace crossrank::shm
