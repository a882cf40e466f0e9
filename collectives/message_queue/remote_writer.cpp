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

/// Processes answers while `busy` holds for some writer, at most for `limit`.
void advance_while(bool (RemoteWriter::*busy)() const noexcept, std::span<std::unique_ptr<RemoteWriter> const> writers,
                   std::chrono::nanoseconds limit) noexcept {
  platform::Deadline deadline(limit);
  ProportionalBackoff poll;
  while (std::ranges::any_of(writers, [&](auto const& writer) { return ((*writer).*busy)(); }) && !deadline.expired()) {
    for (auto const& writer : writers) writer->advance();
    poll.pause();
    deadline.tick();
  }
}

}  // namespace

RemoteWriter::RemoteWriter(Collective pair, int reader) : reader_(reader), link_(std::move(pair), 1) {
  link_.receive(std::as_writable_bytes(std::span(&ack_, 1)), remote_ack_tag);
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

void drain(std::span<std::unique_ptr<RemoteWriter> const> writers, std::chrono::nanoseconds limit) noexcept {
  advance_while(&RemoteWriter::awaits_end, writers, limit);
  // Gives readers that still listen time to receive the failure. The others will notice that their writer is gone.
  advance_while(&RemoteWriter::sends_failure, writers,
                std::min<std::chrono::nanoseconds>(limit, std::chrono::seconds(1)));
}

}  // namespace crossrank::queue
