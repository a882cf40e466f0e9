#include "collectives/message_queue/remote_reader.hpp"

#include <algorithm>
#include <exception>

#include "collectives/message_queue/poll.hpp"
#include "collectives/object_wire.hpp"
#include "lib/platform/deadline.hpp"

namespace crossrank::queue {

RemoteReader::RemoteReader(Collective pair, std::size_t chunk_bytes)
    : link_(std::move(pair), 0), chunk_bytes_(chunk_bytes) {
  next_head();
}

/// The writer is to hear of the last answers; one that does not listen will find this end gone.
RemoteReader::~RemoteReader() {
  platform::Deadline deadline(std::chrono::seconds(1));
  for (Poll poll; closed_ && !link_.idle() && !link_.lost() && !deadline.expired(); deadline.tick()) {
    static_cast<void>(link_.advance());
    poll.pause();
  }
}

void RemoteReader::next_head() noexcept {
  stage_ = Stage::head;
  link_.receive(std::as_writable_bytes(std::span(&head_, 1)), remote_head_tag);
}

void RemoteReader::next_piece() {
  auto const have = message_->size();
  auto const more = std::min<std::uint64_t>(head_.bytes - have, largest_piece);
  message_->resize(have + static_cast<std::size_t>(more));
  link_.receive(std::span(*message_).subspan(have), remote_body_tag);
}

/// What was asked for is there: a head, or a piece of the message.
void RemoteReader::came() {
  if (stage_ == Stage::head) {
    if (head_.kind == RemoteHead::Kind::end) {
      stage_ = Stage::ended;
      ++taken_;
      acknowledge(false);
      --taken_;
      return;
    }
    message_ = std::make_shared<std::vector<std::byte>>();
    if (head_.bytes <= RemoteHead::most_inlined) {
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
  while (stage_ != Stage::ready && !at_end() && link_.advance()) {
    try {
      came();
    } catch (std::exception const& e) {
      link_.lose(e.what());  // no memory for the message
    }
  }
  return stage_ == Stage::ready;
}

std::shared_ptr<void const> RemoteReader::keep() const noexcept {
  return message_->size() > chunk_bytes_ ? message_ : nullptr;
}

void RemoteReader::take() noexcept {
  ++taken_;
  acknowledge(false);
  message_.reset();
  next_head();
}

void RemoteReader::acknowledge(bool closed) noexcept {
  try {
    auto const ack = std::make_shared<RemoteAck const>(RemoteAck{.taken = taken_, .closed = closed ? 1U : 0U});
    link_.send(std::as_bytes(std::span(ack.get(), 1)), ack, remote_ack_tag);
  } catch (std::exception const& e) {
    link_.lose(e.what());
  }
}

void RemoteReader::close() noexcept {
  if (std::exchange(closed_, true) || at_end()) return;
  acknowledge(true);
}

}  // namespace crossrank::queue
