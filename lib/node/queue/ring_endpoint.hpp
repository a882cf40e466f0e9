#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "lib/node/group/adaptive_spin.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/queue/ring_status.hpp"
#include "lib/node/group/atomic_ops.hpp"

namespace crossrank::node {

/// How one end waits for the other.
struct RingWaitLimits {
  static constexpr auto forever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds timeout = forever;     ///< time awake; 0 looks once
  std::chrono::nanoseconds warn_every = forever;  ///< how often `warn` is called
  std::chrono::nanoseconds look_every = forever;  ///< how often `done` is asked though nobody rings
  std::stop_token stop{};
  std::function<void(std::chrono::nanoseconds)> warn{};  ///< gets the time waited so far
};

enum class WaitResult { ready, lost, timeout, cancelled };

/// Names a ring for whoever wants to read it: what a handle carries.
struct RingId {
  std::uint64_t nonce[2]{};  ///< of the node
  std::uint32_t block = 0;
  std::uint64_t life = 0;  ///< BlockLife of the block
};

/// What both ends of a ring share: its block, a doorbell of one's own, and how to wait. One thread at a time, but for
/// `cancel`.
class RingEndpoint {
 public:
  RingEndpoint(RingEndpoint const&) = delete;
  RingEndpoint& operator=(RingEndpoint const&) = delete;

  [[nodiscard]] NodeComm& comm() const noexcept { return *comm_; }
  [[nodiscard]] RingId name() const noexcept;
  [[nodiscard]] int readers() const noexcept { return readers_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] std::uint32_t chunks() const noexcept { return chunks_; }
  [[nodiscard]] RingStatus& status() noexcept { return status_; }
  [[nodiscard]] RingStatus const& status() const noexcept { return status_; }
  /// Messages that this end has published or taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return next_ - 1; }
  /// Ends the present wait of this end and all later ones. Any thread.
  void cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }

  /// Waits until `done` holds: spinning first, then asleep on this end's doorbell. `lost` is asked whenever a rank has
  /// left, and ends the wait; a `done` that holds comes first. After a timeout this end still counts as one that waits,
  /// until it withdraws that or says whom it blames.
  template <class Done, class Lost>
  [[nodiscard]] WaitResult wait(Done done, Lost lost, RingWaitLimits const& limits) {
    if (cancelled()) return WaitResult::cancelled;
    if (done()) return WaitResult::ready;
    if (limits.timeout > std::chrono::nanoseconds(0) && spin_.wait(comm_->may_spin(), done)) return WaitResult::ready;
    return wait_asleep(done, lost, limits);
  }

 protected:
  /// `queue` is what stands in the block, looked at once.
  RingEndpoint(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::uint64_t life, int index,
               QueueHeader const& queue);
  ~RingEndpoint() = default;
  [[nodiscard]] QueueEndpoint& end(int index) const noexcept { return ends_[index]; }
  [[nodiscard]] QueueEndpoint& own() const noexcept { return ends_[index_]; }
  [[nodiscard]] std::size_t stride() const noexcept;
  /// Says that this end is now in `state`, and wakes all others.
  void announce(EndpointState state) noexcept;
  /// Leaves the ring; says how.
  void leave(EndpointState how) noexcept;
  /// Returns whether a rank of the node has left, or the queue has failed, since the last call. One load.
  [[nodiscard]] bool has_new_departure() noexcept;

  std::shared_ptr<NodeComm> comm_;
  std::uint32_t block_;
  std::uint64_t life_;
  int index_;  ///< among the ends
  QueueEndpoint* ends_;
  // Copies: what stands in shared memory is looked at once.
  std::uint64_t ring_offset_;
  std::uint64_t chunk_bytes_;
  std::uint32_t chunks_;
  int readers_;
  RingStatus status_;
  std::uint64_t next_ = 1;      ///< number of the next message
  std::uint32_t position_ = 0;  ///< chunk in which it stands
  bool left_ = false;

 private:
  [[nodiscard]] WaitResult wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                                       RingWaitLimits const& limits);

  AdaptiveSpin spin_{};
  std::uint32_t departures_ = 0;
  std::atomic<bool> cancelled_{false};
};

}  // namespace crossrank::node
