#include "collectives/message_queue/remote_link.hpp"

#include <algorithm>
#include <exception>

namespace crossrank::queue {

RemoteFailure RemoteFailure::of(node::RingFailure const& failure) noexcept {
  RemoteFailure remote{.kind = failure.timed_out ? Kind::timed_out : Kind::lost,
                       .count = static_cast<std::uint32_t>(failure.ranks.size() + failure.more)};
  auto const listed = std::min(failure.ranks.size(), max_ranks);
  std::transform(failure.ranks.begin(), failure.ranks.begin() + static_cast<std::ptrdiff_t>(listed),
                 remote.ranks.begin(), [](int rank) { return static_cast<std::uint16_t>(rank); });
  return remote;
}

node::RingFailure RemoteFailure::ring_failure() const {
  auto const known = std::min<std::size_t>(count, max_ranks);  // the count comes from another host
  return {.timed_out = kind == Kind::timed_out, .ranks = {ranks.begin(), ranks.begin() + known}, .more = count - known};
}

void RemoteLink::lose(char const* why) noexcept {
  if (lost_) return;
  lost_ = true;
  why_ = why;
}

void RemoteLink::send(std::span<std::byte const> bytes, std::shared_ptr<void const> owner, std::uint32_t tag) noexcept {
  if (lost_ || dropped_) return;
  try {
    sends_.push_back(transport().post_send({.bytes = bytes, .owner = std::move(owner)}, peer_, tag));
  } catch (std::exception const& e) {
    lose(e.what());
  }
}

void RemoteLink::receive(std::span<std::byte> into, std::uint32_t tag) noexcept {
  if (lost_ || dropped_) return;
  try {
    receiving_ = transport().post_recv({.bytes = into, .owner = nullptr}, peer_, tag);
  } catch (std::exception const& e) {
    lose(e.what());
  }
}

bool RemoteLink::advance() noexcept {
  if (dropped_ || lost_) return false;
  try {
    // Received data counts, even if the other side has left since.
    if (receiving_ && transport().test(*receiving_)) {
      receiving_.reset();
      return true;
    }
    while (!sends_.empty() && transport().test(sends_.front())) sends_.pop_front();
  } catch (std::exception const& e) {
    lose(e.what());
  }
  return false;
}

void RemoteLink::drop() noexcept {
  if (dropped_) return;
  dropped_ = true;
  if (!pair_.connected()) return;
  try {
    for (auto const request_id : sends_) transport().cancel(request_id);
    if (receiving_) transport().cancel(*receiving_);
  } catch (std::exception const& e) {
    lose(e.what());
  }
  sends_.clear();
  receiving_.reset();
  pair_ = Collective();
}

}  // namespace crossrank::queue
