#include "collectives/message_queue/remote_reader.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "collectives/message_queue/proportional_backoff.hpp"
#include "collectives/objects/block_header.hpp"
#include "lib/platform/deadline.hpp"

namespace crossrank::queue {

RemoteReader::RemoteReader(Collective pair, std::size_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), link_(std::move(pair), 0) {
  next_head();
}

/// Sends the last answers. A writer that does not receive them will notice that this endpoint is gone.
RemoteReader::~RemoteReader() {
  bool const has_abandoned = !closed_ && !timed_out_for_.ranks.empty();
  if (has_abandoned) acknowledge({.taken = taken_, .failure = RemoteFailure::of(timed_out_for_)});
  if (closed_ || has_abandoned) finish_sending(std::chrono::seconds(1));
}

void RemoteReader::finish_sending(std::chrono::nanoseconds drain_timeout) noexcept {
  platform::Deadline deadline(drain_timeout);
  for (ProportionalBackoff poll; !link_.idle() && !link_.lost() && !deadline.expired(); deadline.tick()) {
    static_cast<void>(link_.advance());
    poll.pause();
  }
}

void RemoteReader::next_head() noexcept {
  stage_ = Stage::head;
  link_.receive(std::as_writable_bytes(std::span(&head_, 1)), remote_header_tag);
}

void RemoteReader::next_piece() {
  auto const have = message_->size();
  auto const more = std::min<std::uint64_t>(head_.bytes - have, largest_piece);
  message_->resize(have + more);
  link_.receive(std::span(*message_).subspan(have), remote_body_tag);
}

void RemoteReader::receive_failure() {
  RemoteFailure remote;
  std::memcpy(&remote, head_.inlined.data(), sizeof remote);
  if (head_.kind == RemoteHeader::Kind::failed) {
    failure_ = remote.ring_failure();
    stage_ = Stage::failed;
  } else {
    writer_waits_for_ = remote.ring_failure();
    writer_waits_for_.timed_out = true;
    std::erase(writer_waits_for_.ranks, link_.own_global_rank());  // this reader has read everything since
    next_head();
  }
}

/// Handles a completed receive: a header, or a piece of the message.
void RemoteReader::came() {
  if (stage_ == Stage::head) {
    if (head_.kind == RemoteHeader::Kind::waits || head_.kind == RemoteHeader::Kind::failed) return receive_failure();
    writer_waits_for_ = {};
    if (head_.kind == RemoteHeader::Kind::end) {
      stage_ = Stage::ended;
      acknowledge({.taken = taken_ + 1});
      return;
    }
    message_ = std::make_shared<std::vector<std::byte>>();
    if (head_.bytes <= RemoteHeader::max_inlined) {
      message_->assign(head_.inlined.begin(), head_.inlined.begin() + static_cast<std::ptrdiff_t>(head_.bytes));
      stage_ = Stage::ready;
      return;
    }
    stage_ = Stage::body;
  }
  if (message_->size() == head_.bytes) {
    stage_ = Stage::ready;
  } else {
    next_piece();
  }
}

bool RemoteReader::has_message() noexcept {
  while (stage_ != Stage::ready && stage_ != Stage::failed && !at_end() && link_.advance()) {
    try {
      came();
    } catch (std::exception const& e) {
      link_.lose(e.what());  // out of memory for the message
    }
  }
  return stage_ == Stage::ready;
}

std::optional<node::RingFailure> RemoteReader::failure() const {
  if (stage_ == Stage::failed) return failure_;
  if (stage_ == Stage::ready || at_end() || !link_.lost()) return std::nullopt;
  return node::RingFailure{.timed_out = false, .ranks = {link_.peer_global_rank()}};
}

node::RingFailure RemoteReader::waited_for() const {
  if (!writer_waits_for_.ranks.empty()) return writer_waits_for_;
  return {.timed_out = true, .ranks = {link_.peer_global_rank()}};
}

std::shared_ptr<void const> RemoteReader::keep() const noexcept {
  return message_->size() > chunk_bytes_ ? message_ : nullptr;
}

void RemoteReader::take() noexcept {
  ++taken_;
  acknowledge({.taken = taken_});
  message_.reset();
  next_head();
}

void RemoteReader::acknowledge(RemoteAck const& ack) noexcept {
  try {
    auto const kept = std::make_shared<RemoteAck const>(ack);
    link_.send(std::as_bytes(std::span(kept.get(), 1)), kept, remote_ack_tag);
  } catch (std::exception const& e) {
    link_.lose(e.what());
  }
}

void RemoteReader::close() noexcept {
  if (std::exchange(closed_, true) || at_end()) return;
  acknowledge({.taken = taken_, .closed = 1});
}

}  // namespace crossrank::queue
