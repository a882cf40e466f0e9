#include "collectives/message_queue/remote_writer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/message_queue/proportional_backoff.hpp"
#include "collectives/objects/block_header.hpp"
#include "lib/platform/deadline.hpp"

namespace crossrank::queue {
namespace {

void send_head(RemoteLink& link, RemoteHeader const& head) {
  auto const kept = std::make_shared<RemoteHeader const>(head);
  link.send(std::as_bytes(std::span(kept.get(), 1)), kept, remote_header_tag);
}

}  // namespace

RemoteWriter::RemoteWriter(Collective pair, int reader, std::chrono::nanoseconds drain_timeout)
    : link_(std::move(pair), 1), reader_(reader), drain_timeout_(drain_timeout) {
  link_.receive(std::as_writable_bytes(std::span(&ack_, 1)), remote_ack_tag);
}

/// Waits until the reader has confirmed the end, because only this object holds the bytes of the pending messages.
RemoteWriter::~RemoteWriter() {
  platform::Deadline deadline(drain_timeout_);
  ProportionalBackoff poll;
  while (end_ != 0 && !failed_ && !has_all() && !closed_ && !link_.lost() && !deadline.expired()) {
    advance();
    poll.pause();
    deadline.tick();
  }
  // Gives a reader that still listens time to receive the failure. Any other reader will notice that this endpoint is
  // gone.
  deadline = platform::Deadline(std::min<std::chrono::nanoseconds>(drain_timeout_, std::chrono::seconds(1)));
  while (failed_ && !link_.idle() && !closed_ && !link_.lost() && !deadline.expired()) {
    advance();
    poll.pause();
    deadline.tick();
  }
}

void RemoteWriter::put(std::uint64_t number, RemoteMessage const& message) noexcept {
  if (closed_) return;
  RemoteHeader head{.number = number, .bytes = message->size()};
  bool const inlined = message->size() <= RemoteHeader::max_inlined;
  if (inlined) std::copy(message->begin(), message->end(), head.inlined.begin());
  send_head(link_, head);
  if (inlined) return;
  std::span<std::byte const> const bytes(*message);
  for (std::size_t at = 0; at < bytes.size(); at += largest_piece)
    link_.send(bytes.subspan(at, std::min(largest_piece, bytes.size() - at)), message, remote_body_tag);
}

void RemoteWriter::end(std::uint64_t messages) noexcept {
  if (closed_ || end_ != 0) return;
  end_ = messages + 1;
  send_head(link_, {.number = end_, .kind = RemoteHeader::Kind::end});
}

void RemoteWriter::report_waiting(std::vector<int> const& ranks) noexcept {
  send_failure(RemoteHeader::Kind::waits, {.timed_out = false, .ranks = ranks});
}

void RemoteWriter::fail(node::RingFailure const& failure) noexcept {
  if (!std::exchange(failed_, true)) send_failure(RemoteHeader::Kind::failed, failure);
}

void RemoteWriter::send_failure(RemoteHeader::Kind kind, node::RingFailure const& failure) noexcept {
  if (closed_ || end_ != 0) return;
  RemoteHeader head{.kind = kind};
  auto const remote = RemoteFailure::of(failure);
  std::memcpy(head.inlined.data(), &remote, sizeof remote);
  send_head(link_, head);
}

void RemoteWriter::advance() noexcept {
  while (link_.advance()) {
    taken_ = std::max(taken_, ack_.taken);
    closed_ = closed_ || ack_.closed != 0;
    if (ack_.failure.kind != RemoteFailure::Kind::none) reason_ = ack_.failure.ring_failure();
    if (closed_ || reason_ || has_all()) return link_.drop();
    link_.receive(std::as_writable_bytes(std::span(&ack_, 1)), remote_ack_tag);
  }
}

}  // namespace crossrank::queue
