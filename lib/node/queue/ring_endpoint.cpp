#include "lib/node/queue/ring_endpoint.hpp"

#include <algorithm>
#include <utility>

#include "lib/node/memory/counters.hpp"
#include "lib/node/queue/ring_layout.hpp"
#include "lib/platform/deadline.hpp"
#include "lib/platform/progress_hook.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

RingEndpoint::RingEndpoint(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::uint64_t use_word, int index,
                           QueueHeader const& queue)
    : comm_(std::move(comm)),
      block_(block),
      use_word_(use_word),
      index_(index),
      endpoints_(comm_->blocks().endpoints(block)),
      ring_offset_(queue.ring_offset),
      chunk_bytes_(queue.chunk_bytes),
      chunks_(queue.chunks),
      readers_(static_cast<int>(queue.readers)),
      status_(*comm_, block, index, readers_) {}

RingId RingEndpoint::name() const noexcept {
  auto const& header = comm_->header();
  return {.nonce = {header.nonce[0], header.nonce[1]}, .block = block_, .use_word = use_word_};
}

std::size_t RingEndpoint::stride() const noexcept { return stride_of(chunk_bytes_); }

void RingEndpoint::cancel() noexcept {
  cancelled_.exchange(true, std::memory_order_seq_cst);
  ring(own().doorbell);
}

void RingEndpoint::announce(EndpointState state) noexcept {
  auto const word =
      EndpointWord{
          .use = BlockUse::unpack(use_word_).number, .rank = static_cast<std::uint32_t>(comm_->rank()), .state = state}
          .pack();
  atomic_ops::deliver(own().state, word, [&] {
    if (state == EndpointState::dropped) comm_->header().departures.fetch_add(1, std::memory_order_seq_cst);
    for (int other = 0; other <= readers_; ++other) {
      if (other != index_) ring(endpoint(other).doorbell);
    }
  });
}

void RingEndpoint::leave(EndpointState how) noexcept {
  if (!left_ && comm_->is_own_process()) {
    if (how == EndpointState::dropped) status_.leave();
    announce(how);
  }
  left_ = true;
}

bool RingEndpoint::has_new_departure() noexcept {
  auto const now = comm_->header().departures.load(std::memory_order_acquire);
  return std::exchange(departures_, now) != now;
}

WaitResult RingEndpoint::wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                                     RingWaitLimits const& limits) {
  auto& doorbell = own().doorbell;
  platform::Deadline deadline(limits.timeout);
  auto next_warning = limits.warn_every;
  std::stop_callback const on_stop(limits.stop, [&doorbell] { ring(doorbell); });
  auto ended = WaitResult::timeout;
  auto nap = limits.poll_interval;
  status_.wait_begins();
  auto const poll = [&] {
    nap = platform::ProgressHook::make_progress(limits.poll_interval);
    if (done()) {
      ended = WaitResult::ready;
    } else if (cancelled_.load(std::memory_order_seq_cst) || limits.stop.stop_requested()) {
      ended = WaitResult::cancelled;
    } else if (lost()) {
      ended = done() ? WaitResult::ready : WaitResult::lost;
    } else {
      return deadline.expired();
    }
    return true;
  };
  auto const sleep = [&](std::uint32_t seen) {
    count(counters().futex_waits);
    platform::system().futex_wait(reinterpret_cast<std::uint32_t const*>(&doorbell), seen,
                                  std::min(deadline.next_wait(), nap));
    deadline.tick();
    if (deadline.idle() < next_warning) return;
    next_warning = deadline.idle() + limits.warn_every;
    limits.warn(deadline.idle());
  };
  try {
    atomic_ops::sleep_on(doorbell, poll, sleep);
  } catch (...) {  // `done` may fail, for example without memory
    status_.withdraw();
    throw;
  }
  if (ended != WaitResult::timeout) status_.withdraw();
  return ended;
}

}  // namespace crossrank::node
