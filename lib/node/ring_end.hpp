#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "lib/node/awake.hpp"
#include "lib/node/domain.hpp"
#include "lib/node/ring_fate.hpp"
#include "lib/node/steps.hpp"

namespace crossrank::node {

/// How one end waits for the other.
struct RingWait {
  static constexpr auto forever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds timeout = forever;     ///< time awake; 0 looks once
  std::chrono::nanoseconds warn_every = forever;  ///< how often `warn` is called
  std::chrono::nanoseconds look_every = forever;  ///< how often `done` is asked though nobody rings
  std::stop_token stop{};
  std::function<void(std::chrono::nanoseconds)> warn{};  ///< gets the time waited so far
};

enum class WaitEnd { ready, lost, timeout, cancelled };

/// Names a ring for whoever wants to read it: what a handle carries.
struct RingName {
  std::uint64_t nonce[2]{};  ///< of the node
  std::uint32_t block = 0;
  std::uint64_t life = 0;  ///< BlockLife of the block
};

/// What both ends of a ring share: its block, a doorbell of one's own, and how to wait. One thread at a time, but for
/// `cancel`.
class RingEnd {
 public:
  RingEnd(RingEnd const&) = delete;
  RingEnd& operator=(RingEnd const&) = delete;

  [[nodiscard]] NodeDomain& domain() const noexcept { return *domain_; }
  [[nodiscard]] RingName name() const noexcept;
  [[nodiscard]] int readers() const noexcept { return readers_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] std::uint32_t chunks() const noexcept { return chunks_; }
  [[nodiscard]] RingFate& fate() noexcept { return fate_; }
  [[nodiscard]] RingFate const& fate() const noexcept { return fate_; }
  /// Messages that this end has published or taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return next_ - 1; }
  /// Ends the present wait of this end and all later ones. Any thread.
  void cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }

  /// Waits until `done` holds: awake first, then asleep on this end's bell. `lost` is asked whenever a rank has left,
  /// and ends the wait; a `done` that holds comes first. After a timeout this end still counts as one that waits, until
  /// it withdraws that or says whom it blames.
  template <class Done, class Lost>
  [[nodiscard]] WaitEnd wait(Done done, Lost lost, RingWait const& limits) {
    if (cancelled()) return WaitEnd::cancelled;
    if (done()) return WaitEnd::ready;
    if (limits.timeout > std::chrono::nanoseconds(0) && awake_.wait(domain_->may_spin(), done)) return WaitEnd::ready;
    return wait_asleep(done, lost, limits);
  }

 protected:
  /// `queue` is what stands in the block, looked at once.
  RingEnd(std::shared_ptr<NodeDomain> domain, std::uint32_t block, std::uint64_t life, int index,
          QueueHeader const& queue);
  ~RingEnd() = default;
  [[nodiscard]] QueueEnd& end(int index) const noexcept { return ends_[index]; }
  [[nodiscard]] QueueEnd& own() const noexcept { return ends_[index_]; }
  [[nodiscard]] std::size_t stride() const noexcept;
  /// Says that this end is now in `state`, and wakes all others.
  void announce(EndState state) noexcept;
  /// Leaves the ring; says how.
  void leave(EndState how) noexcept;
  /// Whether a rank of the node has left, or the queue has failed, since the last call. One load.
  [[nodiscard]] bool somebody_departed() noexcept;

  std::shared_ptr<NodeDomain> domain_;
  std::uint32_t block_;
  std::uint64_t life_;
  int index_;  ///< among the ends
  QueueEnd* ends_;
  // Copies: what stands in shared memory is looked at once.
  std::uint64_t ring_offset_;
  std::uint64_t chunk_bytes_;
  std::uint32_t chunks_;
  int readers_;
  RingFate fate_;
  std::uint64_t next_ = 1;      ///< number of the next message
  std::uint32_t position_ = 0;  ///< chunk in which it stands
  bool left_ = false;

 private:
  [[nodiscard]] WaitEnd wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                                    RingWait const& limits);

  Awake awake_{};
  std::uint32_t departures_ = 0;
  std::atomic<bool> cancelled_{false};
};

}  // namespace crossrank::node
