#include <crossrank/group.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/coordinator/coordinator_state.hpp"
#include "collectives/objects/peer_exception.hpp"
#include "lib/core/error_record.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/objects/user_code_scope.hpp"

namespace crossrank {
namespace {

// First byte of a message in the queue.
constexpr std::byte object_follows{0};
constexpr std::byte failure_follows{1};

detail::Bytes behind(std::byte mark, detail::Bytes const& bytes) {
  detail::Bytes out(bytes.size() + 1);
  out.front() = mark;
  std::copy(bytes.begin(), bytes.end(), out.begin() + 1);
  return out;
}

}  // namespace

bool GroupCoordinator::has_queue_from(BroadcastFrom source) const {
  auto const& held = state("broadcast_object");
  checked_rank(held.cpu, source.src, "broadcast_object", "the source");
  if (!held.queue.connected()) return false;
  // Agree on the source first: one source uses the queue and another the group, so differing ranks would wait forever.
  detail::NamedCalls(held.cpu, "broadcast_object", source.src).agree();
  return source.src == 0;
}

detail::Bytes GroupCoordinator::broadcast_by_queue(detail::Produce const& produce) const {
  auto const& held = state("broadcast_object");
  if (held.queue.is_writer()) {
    std::exception_ptr error;
    detail::Bytes message;
    try {
      UserCodeScope const running(held.cpu);
      message = behind(object_follows, produce());
    } catch (...) {
      error = std::current_exception();
      message = behind(failure_follows, encode_exception(error));
    }
    held.queue.enqueue_bytes(message);
    if (error) std::rethrow_exception(error);
    return {};
  }
  auto const message = held.queue.dequeue_bytes();
  if (!message) {
    auto info = usage_in(held.cpu, "broadcast_object", "the source has left the group");
    info.failed_ranks = {0};
    throw PeerLostError(std::move(info));
  }
  if (message->empty())
    throw FormatError({.operation = "broadcast_object", .message = "received an empty message", .section = "queue"});
  detail::Bytes bytes(message->begin() + 1, message->end());
  if (message->front() == failure_follows) throw peer_exception(held.cpu, "broadcast_object", {0}, bytes);
  return bytes;
}

MessageQueue GroupCoordinator::create_mq_broadcaster(QueueOptions const& options) const {
  return MessageQueue::create(state("create_mq_broadcaster").cpu, options);
}

MessageQueue GroupCoordinator::attach_mq_broadcaster(std::vector<std::byte> const& writer_handle,
                                                     BroadcastFrom relay) const {
  auto const& group = state("attach_mq_broadcaster").cpu;
  auto const handle = group.broadcast_object(writer_handle, {relay.src});
  return MessageQueue::attach(group, handle, group.rank());
}

SingleReaderQueues GroupCoordinator::create_single_reader_mq_broadcasters(int reader, QueueOptions options) const {
  constexpr char const* operation = "create_single_reader_mq_broadcasters";
  auto const& group = state(operation).cpu;
  SingleReaderQueues out;
  auto const handles = detail::gather_bytes(group, operation, reader, [&] {
    out.own = MessageQueue::create_writer(group, 1, options);
    return out.own.handle();
  });
  // Wait until the reader has attached. If the writer were dropped before, the reader would have nothing to attach to.
  static_cast<void>(detail::broadcast_bytes(group, operation, reader, [&] {
    for (auto const& handle : handles) out.from.push_back(MessageQueue::attach(group, handle, 0));
    return detail::Bytes();
  }));
  return out;
}

}  // namespace crossrank
