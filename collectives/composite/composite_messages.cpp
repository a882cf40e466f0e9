#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/composite/composite_transport.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/group.hpp"

/// Messages use `across`, which keeps their order. Between GPUs of one node the payload stays in the sender's outbox,
/// and an attachment says where: `collectives/shm/device_payloads.hpp`. A message through host memory announces the
/// outbox.
namespace crossrank::composite {
namespace {

using spi::OpKind;
using spi::RequestId;

/// The place of a payload in the sender's outbox.
struct PayloadRecord {
  shm::OutboxId slot{};  ///< whose lease keeps the payload
  shm::SlotRecord where{};
};
static_assert(std::is_trivially_copyable_v<PayloadRecord> && sizeof(PayloadRecord) == 40);
static_assert(sizeof(shm::OutboxRecord) <= message::max_attachment_bytes);

template <class Record>
message::Attachment attachment_of(Record const& record, bool has_payload_elsewhere) {
  auto const bytes = std::as_bytes(std::span(&record, 1));
  return {.bytes = {bytes.begin(), bytes.end()}, .has_payload_elsewhere = has_payload_elsewhere};
}

/// Returns a record that a peer has sent. A short one is filled with zeros, which name nothing.
template <class Record>
Record record_in(std::span<std::byte const> bytes) {
  Record record;
  std::memcpy(&record, bytes.data(), std::min(bytes.size(), sizeof record));
  return record;
}

}  // namespace

/// The attachment of a received message, and a lease on the memory that it names.
struct CompositeTransport::FoundAttachment {
  std::size_t payload_bytes = 0;
  bool is_on_device = false;  ///< the receiver is a GPU
  int member = -1;
  message::Attachment attachment{};
  std::shared_ptr<void const> lease{};
  DevicePayload payload{};  ///< from `follow_attachments` on
};

std::unique_ptr<CompositeTransport::Neighbours> CompositeTransport::neighbours_of(Subtransports const& subtransports) {
  auto* const messages = dynamic_cast<message::MessageTransport*>(subtransports.across.get());
  auto const group = node::group_of(subtransports.local->node_memory());
  if (messages == nullptr || !group || group->size() == 1) return nullptr;
  std::vector<int> node_ranks(as_size(messages->world_size()), -1);
  for (int const member : subtransports.map.members_of(subtransports.map.own))
    at_rank(node_ranks, member) = group->node_rank(subtransports.map.place_of(member));
  return std::make_unique<Neighbours>(
      Neighbours{.messages = messages,
                 .comm = group->shared_comm(),
                 .node_ranks = std::make_shared<std::vector<int> const>(std::move(node_ranks)),
                 .payloads = shm::DevicePayloads(group->shared_comm())});
}

std::function<bool()> CompositeTransport::taken_by(int member) const {
  constexpr auto no_message = ~std::uint64_t{0};  // of the group on the node, so that only the end of the member counts
  auto has_left = node::group_of(node_memory())->message_taken(subtransports_.map.place_of(member), no_message);
  return [taken = neighbours_->messages->all_taken_by(member), has_left = std::move(has_left)] {
    return taken() || has_left();
  };
}

// ---------------------------------------------------------------- sends

RequestId CompositeTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  CompositeOp op{.op_kind = OpKind::send, .peer = dst};
  op.steps.push_back({&across(), [this, bytes, dst, tag] {
                        bool const is_neighbour = dst != rank() && neighbour(dst) >= 0;
                        auto const* const announced =
                            is_neighbour ? neighbours_->payloads.announcement_to(neighbour(dst)) : nullptr;
                        if (announced == nullptr) return across().post_send(bytes, dst, tag);
                        auto const request_id =
                            neighbours_->messages->post_send_with(bytes, dst, tag, attachment_of(*announced, false));
                        neighbours_->payloads.outbox().announced_to(neighbour(dst), taken_by(dst));
                        return request_id;
                      }});
  return post_steps(std::move(op));
}

std::shared_ptr<DeviceSlot> CompositeTransport::take_device_slot(Stream const& stream, std::size_t bytes, int dst) {
  if (dst == rank() || neighbour(dst) < 0) return nullptr;
  return neighbours_->payloads.take_slot(stream, bytes, neighbour(dst));
}

RequestId CompositeTransport::post_device_send(std::shared_ptr<DeviceSlot> slot, std::size_t bytes, int dst,
                                               std::uint32_t tag) {
  CompositeOp op{.op_kind = OpKind::send, .peer = dst};
  op.steps.push_back({&across(), [this, slot = std::move(slot), bytes, dst, tag] {
                        auto& outbox = neighbours_->payloads.outbox();
                        auto const& described = outbox.described_by(*slot);
                        PayloadRecord const record{.slot = {.generation = described.generation, .slot = described.id},
                                                   .where = {.outbox = outbox.record().id,
                                                             .offset = as_size(slot->data - slot->storage->data())}};
                        auto const request_id = neighbours_->messages->post_send_with(
                            {.bytes = {slot->data, bytes}}, dst, tag, attachment_of(record, true));
                        outbox.sent(*slot, neighbour(dst), taken_by(dst));
                        return request_id;
                      }});
  return post_steps(std::move(op));
}

void CompositeTransport::flush_messages() noexcept {
  if (!neighbours_) return;
  auto const& messages = *neighbours_->messages;
  auto& network = messages.network();
  if (!network.is_own_process() || messages.is_closed() || messages.has_failed()) return;
  neighbours_->payloads.flush([&network] {
    auto const guard = network.lock();
    network.pump();
  });
}

// ---------------------------------------------------------------- receives

RequestId CompositeTransport::post_receive(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                           std::shared_ptr<DevicePayload> found) {
  CompositeOp op{.op_kind = source ? OpKind::recv_any : OpKind::recv, .peer = source ? CompositeOp::no_peer : src};
  if (!neighbours_) {
    op.steps.push_back({&across(), [this, bytes, src, tag, source] {
                          return source ? across().post_recv_any(bytes, tag, source)
                                        : across().post_recv(bytes, src, tag);
                        }});
    return post_steps(std::move(op));
  }
  auto const attached = std::make_shared<FoundAttachment>(
      FoundAttachment{.payload_bytes = bytes.bytes.size(), .is_on_device = found != nullptr});
  // The lease comes before the sender knows that the message has been taken.
  auto take = [attached, comm = neighbours_->comm, node_ranks = neighbours_->node_ranks, all = neighbours_->found](
                  int member, message::Bytes attachment, bool has_payload_elsewhere) {
    attached->member = member;
    attached->attachment = {.bytes = {attachment.begin(), attachment.end()},
                            .has_payload_elsewhere = has_payload_elsewhere};
    auto const owner = at_rank(*node_ranks, member);
    if (owner >= 0) attached->lease = shm::hold(*comm, owner, record_in<shm::OutboxId>(attachment));
    std::lock_guard const lock(all->mutex);
    all->in_order.push_back(attached);
  };
  auto post = [this, bytes, src, tag, source = std::move(source), take = std::move(take)] {
    return neighbours_->messages->post_recv_with(bytes, src, tag, source, take);
  };
  auto then = [this, attached, bytes, found = std::move(found)] { take_attachment(*attached, bytes, found.get()); };
  op.steps.push_back({&across(), std::move(post), std::move(then)});
  return post_steps(std::move(op));
}

RequestId CompositeTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  return post_receive(std::move(bytes), src, tag, nullptr, nullptr);
}

RequestId CompositeTransport::post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) {
  return post_receive(std::move(bytes), CompositeOp::no_peer, tag, std::move(source), nullptr);
}

RequestId CompositeTransport::post_device_recv(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                               std::shared_ptr<DevicePayload> found) {
  return post_receive(std::move(bytes), src, tag, std::move(source), std::move(found));
}

void CompositeTransport::follow_attachments() {
  std::deque<std::shared_ptr<FoundAttachment>> found;
  {
    std::lock_guard const lock(neighbours_->found->mutex);
    found.swap(neighbours_->found->in_order);
  }
  auto& inbox = neighbours_->payloads.inbox();
  for (auto const& one : found) {
    auto const owner = neighbour(one->member);
    auto const& bytes = one->attachment.bytes;
    if (owner < 0) continue;
    if (one->attachment.has_payload_elsewhere) {
      one->payload =
          inbox.find(owner, record_in<PayloadRecord>(bytes).where, one->payload_bytes, std::move(one->lease));
    } else if (one->is_on_device) {
      inbox.open(owner, record_in<shm::OutboxRecord>(bytes), std::move(one->lease));
    }
  }
}

void CompositeTransport::take_attachment(FoundAttachment& attached, spi::Sink const& sink, DevicePayload* found) {
  if (attached.attachment.bytes.empty()) return;
  follow_attachments();
  auto const owner = neighbour(attached.member);
  if (owner < 0 || !attached.attachment.has_payload_elsewhere) return;
  try {
    auto const group = node::group_of(node_memory());
    auto const place = subtransports_.map.place_of(attached.member);
    if (group->comm().has_departed(owner)) {
      group->fail(node::Verdict::aborted, "its message was in the memory of its GPU, which has gone with it", {place});
      group->throw_if_failed("recv");
    }
    if (!attached.payload.memory)
      group->fail_corrupt("recv", "payload on the GPU of rank " + std::to_string(attached.member),
                          std::to_string(sink.bytes.size()) + " bytes in its announced memory", "none");
  } catch (Error const&) {
    end_with(subtransports_.local.get(), "recv");
  }
  shm::deliver(std::move(attached.payload), found, sink.bytes);
}

}  // namespace crossrank::composite
