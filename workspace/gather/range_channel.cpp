#include "workspace/gather/range_channel.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "lib/core/flag_scope.hpp"

namespace crossrank::workspace {
namespace {

constexpr std::uint32_t tag_of_choices = 1;
constexpr std::uint32_t tag_of_contributions = 2;

}  // namespace

void RangeChannel::choose(int owner, std::uint64_t range, Choice choice, spi::TimeoutPolicy const& policy) {
  Asked const message{range, choice};
  transport_->wait(transport_->post_send({.bytes = std::as_bytes(std::span(&message, 1))}, owner, tag_of_choices),
                   policy);
}

void RangeChannel::receive(int owner, std::shared_ptr<std::vector<std::byte>> const& bytes,
                           spi::TimeoutPolicy const& policy) {
  transport_->wait(transport_->post_recv({.bytes = *bytes, .owner = bytes}, owner, tag_of_contributions), policy);
}

void RangeChannel::offer(std::uint64_t range, int receiver, std::vector<std::byte> bytes) {
  offers_.emplace(range,
                  Offer{.receiver = receiver, .bytes = std::make_shared<std::vector<std::byte>>(std::move(bytes))});
  try {
    expect_from(receiver);
    detail::register_pending(shared_from_this());
  } catch (...) {
    withdraw(range);
    throw;
  }
}

bool RangeChannel::must_hear_from(int receiver) const noexcept {
  return std::any_of(offers_.begin(), offers_.end(),
                     [&](auto const& entry) { return entry.second.receiver == receiver && !entry.second.chosen; });
}

void RangeChannel::expect_from(int receiver) {
  if (!must_hear_from(receiver) || expected_.contains(receiver)) return;
  auto const message = std::make_shared<Asked>();
  auto const request = transport_->post_recv(
      {.bytes = std::as_writable_bytes(std::span(message.get(), 1)), .owner = message}, receiver, tag_of_choices);
  expected_.emplace(receiver, Expected{message, request});
}

void RangeChannel::answer(int receiver, Asked const& message) {
  auto const found = offers_.find(message.range);
  if (found != offers_.end() && found->second.receiver == receiver) {
    auto& offer = found->second;
    offer.chosen = true;
    if (message.choice == Choice::send)
      offer.sending =
          transport_->post_send({.bytes = *offer.bytes, .owner = offer.bytes}, receiver, tag_of_contributions);
  }
  expect_from(receiver);
}

bool RangeChannel::advance() {
  bool moved = false;
  for (auto at = expected_.begin(); at != expected_.end();) {
    auto const receiver = at->first;
    auto const [message, request] = at->second;
    bool ended = true;  // however it ends, the request is gone
    try {
      ended = transport_->test(request);
    } catch (...) {
      expected_.erase(at);
      throw;
    }
    if (!ended) {
      ++at;
      continue;
    }
    at = expected_.erase(at);
    answer(receiver, *message);
    moved = true;
  }
  for (auto& [range, offer] : offers_) {
    if (!offer.sending) continue;
    auto const request = *std::exchange(offer.sending, std::nullopt);
    if (!transport_->test(request)) {
      offer.sending = request;
    } else {
      moved = true;
    }
  }
  return moved;
}

detail::PendingWork::ProgressMade RangeChannel::make_progress() noexcept {
  if (failure_) return {.left = RemainingWork::nothing};
  if (in_use_) return {};
  FlagScope const scope(in_use_);
  bool moved = false;
  try {
    moved = advance();
  } catch (...) {
    failure_ = std::current_exception();  // `serve` throws it
  }
  bool const done = failure_ || std::all_of(offers_.begin(), offers_.end(),
                                            [](auto const& entry) { return is_served(entry.second); });
  return {done ? RemainingWork::nothing : RemainingWork::elsewhere, moved};
}

void RangeChannel::serve(std::uint64_t range, spi::TimeoutPolicy const& policy) {
  auto& offer = offers_.at(range);
  for (;;) {
    if (failure_) std::rethrow_exception(failure_);
    if (is_served(offer)) break;
    // `make_progress`, which other offers need during the wait, must not find the request of the wait.
    if (offer.sending) {
      transport_->wait(*std::exchange(offer.sending, std::nullopt), policy);
      continue;
    }
    expect_from(offer.receiver);
    auto const expected = expected_.extract(offer.receiver);
    transport_->wait(expected.mapped().request, policy);
    FlagScope const scope(in_use_);
    answer(offer.receiver, *expected.mapped().message);
  }
  offers_.erase(range);
}

void RangeChannel::withdraw(std::uint64_t range) noexcept {
  auto const found = offers_.find(range);
  if (found == offers_.end()) return;
  auto const receiver = found->second.receiver;
  if (found->second.sending) transport_->cancel(*found->second.sending);
  offers_.erase(found);
  auto const at = expected_.find(receiver);
  if (at == expected_.end() || must_hear_from(receiver)) return;
  transport_->cancel(at->second.request);
  expected_.erase(at);
}

}  // namespace crossrank::workspace
