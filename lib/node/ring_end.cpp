#include "lib/node/ring_end.hpp"

#include <algorithm>
#include <utility>

#include "lib/node/counters.hpp"
#include "lib/node/ring_layout.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/idle_work.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

RingEnd::RingEnd(std::shared_ptr<NodeDomain> domain, std::uint32_t block, std::uint64_t life, int index,
                 QueueHeader const& queue)
    : domain_(std::move(domain)),
      block_(block),
      life_(life),
      index_(index),
      ends_(domain_->blocks().ends(block)),
      ring_offset_(queue.ring_offset),
      chunk_bytes_(queue.chunk_bytes),
      chunks_(queue.chunks),
      readers_(static_cast<int>(queue.readers)),
      fate_(*domain_, block, index, readers_) {}

RingName RingEnd::name() const noexcept {
  auto const& header = domain_->header();
  return {.nonce = {header.nonce[0], header.nonce[1]}, .block = block_, .life = life_};
}

std::size_t RingEnd::stride() const noexcept { return stride_of(chunk_bytes_); }

void RingEnd::cancel() noexcept {
  cancelled_.exchange(true, std::memory_order_seq_cst);
  ring(own().bell);
}

void RingEnd::announce(EndState state) noexcept {
  auto const word = EndWord{.use = BlockLife::unpack(life_).use, .state = state}.pack();
  steps::deliver(own().state, word, [&] {
    if (state == EndState::dropped) domain_->header().departures.fetch_add(1, std::memory_order_seq_cst);
    for (int other = 0; other <= readers_; ++other) {
      if (other != index_) ring(end(other).bell);
    }
  });
}

void RingEnd::leave(EndState how) noexcept {
  if (!left_ && domain_->is_own_process()) {
    if (how == EndState::dropped) fate_.leave();
    announce(how);
  }
  left_ = true;
}

bool RingEnd::somebody_departed() noexcept {
  auto const now = domain_->header().departures.load(std::memory_order_acquire);
  return std::exchange(departures_, now) != now;
}

WaitEnd RingEnd::wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                             RingWait const& limits) {
  auto& bell = own().bell;
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  std::stop_callback const on_stop(limits.stop, [&bell] { ring(bell); });
  auto ended = WaitEnd::timeout;
  auto nap = limits.look_every;
  fate_.wait_begins();
  auto const look = [&] {
    nap = platform::IdleWork::go_on(limits.look_every);
    if (done()) {
      ended = WaitEnd::ready;
    } else if (cancelled_.load(std::memory_order_seq_cst) || limits.stop.stop_requested()) {
      ended = WaitEnd::cancelled;
    } else if (lost()) {
      ended = done() ? WaitEnd::ready : WaitEnd::lost;
    } else {
      return deadline.expired();
    }
    return true;
  };
  steps::sleep_on(bell, look, [&](std::uint32_t seen) {
    count(counters().futex_waits);
    platform::system().futex_wait(reinterpret_cast<std::uint32_t const*>(&bell), seen,
                                  std::min(deadline.next_wait(), nap));
    deadline.tick();
    if (deadline.idle() < next_warning) return;
    next_warning = deadline.idle() + limits.warn_every;
    limits.warn(deadline.idle());
  });
  if (ended != WaitEnd::timeout) fate_.withdraw();
  return ended;
}

}  // namespace crossrank::node
