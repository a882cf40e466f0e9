#include <utility>
#include <variant>

#include "collectives/message/message_transport.hpp"

/// Posting of messages.
namespace crossrank::message {

using spi::RequestId;

RequestId MessageTransport::post_message(MessageOp op) {
  require_open(op.name());
  auto const guard = link_.network().lock();
  begin_post(op.name());
  auto const request_id = next_request_id();
  mailboxes_.post(request_id, std::move(op));
  return request_id;
}

RequestId MessageTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  return post_message(MessageOp::send(std::move(bytes), dst, tag));
}

RequestId MessageTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  return post_message(MessageOp::receive(std::move(bytes), src, tag));
}

RequestId MessageTransport::post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) {
  return post_message(MessageOp::receive_any(std::move(bytes), tag, std::move(source)));
}

RequestId MessageTransport::post_send_with(spi::Source bytes, int dst, std::uint32_t tag, Attachment attachment) {
  return post_message(MessageOp::send(std::move(bytes), dst, tag, std::move(attachment)));
}

RequestId MessageTransport::post_recv_with(spi::Sink bytes, int src, std::uint32_t tag, std::shared_ptr<int> source,
                                           AttachmentHandler on_attachment) {
  auto op = source ? MessageOp::receive_any(std::move(bytes), tag, std::move(source))
                   : MessageOp::receive(std::move(bytes), src, tag);
  std::get<IncomingMessage>(op.message).on_attachment = std::move(on_attachment);
  return post_message(std::move(op));
}

std::function<bool()> MessageTransport::all_taken_by(int dst) const {
  auto const guard = link_.network().lock();
  return mailboxes_.all_taken_by(dst);
}

}  // namespace crossrank::message
