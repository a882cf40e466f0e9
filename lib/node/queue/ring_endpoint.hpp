#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "lib/node/wait/adaptive_spin.hpp"
#include "lib/node/group/node_comm.hpp"
#include "lib/node/queue/ring_status.hpp"
#include "lib/node/group/atomic_ops.hpp"

namespace crossrank::node {

/// How an endpoint waits for the other side.
struct RingWaitLimits {
  static constexpr auto forever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds timeout = forever;        ///< limit in time awake; 0 checks once
  std::chrono::nanoseconds warn_every = forever;     ///< how often `warn` is called
  std::chrono::nanoseconds poll_interval = forever;  ///< how often to call `done` without a ring
  std::stop_token stop{};
  std::function<void(std::chrono::nanoseconds)> warn{};  ///< called with the time waited so far
};

enum class WaitResult { ready, lost, timeout, cancelled };

/// The name of a ring for its readers, as handles carry it.
struct RingId {
  std::uint64_t nonce[2]{};  ///< of the node
  std::uint32_t block = 0;
  std::uint64_t use_word = 0;  ///< BlockUse of the block
};

/// The common part of a ring's writer and readers: its block, this endpoint's doorbell, and waiting. Used by one thread
/// at a time, except for `cancel`.
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
  /// Returns the number of messages that this endpoint has published or taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return next_ - 1; }
  /// Ends the current wait of this endpoint and all later ones. Thread-safe.
  void cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }

  /// Waits until `done` holds: spins first, then sleeps on the doorbell. Calls `lost` whenever a rank has left; it ends
  /// the wait unless `done` holds. After a timeout this endpoint still counts as waiting until it withdraws that or
  /// records which ranks it blames.
  template <class Done, class Lost>
  [[nodiscard]] WaitResult wait(Done done, Lost lost, RingWaitLimits const& limits) {
    bool const is_cancelled = cancelled();
    bool const spins = limits.timeout > std::chrono::nanoseconds(0);
    if (!is_cancelled && !done() && !(spins && spin_.wait(comm_->may_spin(), done)))
      return wait_asleep(done, lost, limits);
    status_.withdraw();
    return is_cancelled ? WaitResult::cancelled : WaitResult::ready;
  }

 protected:
  /// `queue` is the header in the block, which is read only once.
  RingEndpoint(std::shared_ptr<NodeComm> comm, std::uint32_t block, std::uint64_t use_word, int index,
               QueueHeader const& queue);
  ~RingEndpoint() = default;
  [[nodiscard]] QueueEndpoint& endpoint(int index) const noexcept { return endpoints_[index]; }
  [[nodiscard]] QueueEndpoint& own() const noexcept { return endpoints_[index_]; }
  [[nodiscard]] std::size_t stride() const noexcept;
  /// Sets the state of this endpoint and wakes all others.
  void announce(EndpointState state) noexcept;
  /// Leaves the ring with this state.
  void leave(EndpointState how) noexcept;
  /// Returns whether a rank of the node has left, or the queue has failed, since the last call. One load.
  [[nodiscard]] bool has_new_departure() noexcept;

  std::shared_ptr<NodeComm> comm_;
  std::uint32_t block_;
  std::uint64_t use_word_;
  int index_;  ///< among the endpoints
  QueueEndpoint* endpoints_;
  // Copies: values in shared memory are read only once.
  std::uint64_t ring_offset_;
  std::uint64_t chunk_bytes_;
  std::uint32_t chunks_;
  int readers_;
  RingStatus status_;
  std::uint64_t next_ = 1;      ///< number of the next message
  std::uint32_t position_ = 0;  ///< chunk that it uses next
  bool left_ = false;

 private:
  [[nodiscard]] WaitResult wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                                       RingWaitLimits const& limits);

  AdaptiveSpin spin_{};
  std::uint32_t departures_ = 0;
  std::atomic<bool> cancelled_{false};
};

}  // namespace crossrank::node
