#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/node/awake.hpp"
#include "lib/node/domain.hpp"
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
  /// Messages that this end has published or taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return next_ - 1; }
  /// Ends the present wait of this end and all later ones. Any thread.
  void cancel() noexcept;
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }

  /// Waits until `done` holds: awake first, then asleep on this end's bell. `lost` is asked whenever a rank has left,
  /// and ends the wait; a `done` that holds comes first.
  template <class Done, class Lost>
  [[nodiscard]] WaitEnd wait(Done done, Lost lost, RingWait const& limits) {
    if (cancelled()) return WaitEnd::cancelled;
    if (done()) return WaitEnd::ready;
    if (limits.timeout > std::chrono::nanoseconds(0) && awake_.wait(domain_->may_spin(), done)) return WaitEnd::ready;
    return wait_asleep(done, lost, limits);
  }

 protected:
  RingEnd(std::shared_ptr<NodeDomain> domain, std::uint32_t block, std::uint64_t life, int index);
  ~RingEnd() = default;
  [[nodiscard]] QueueEnd& end(int index) const noexcept { return ends_[index]; }
  [[nodiscard]] QueueEnd& own() const noexcept { return ends_[index_]; }
  [[nodiscard]] std::size_t stride() const noexcept;
  /// Says that this end is now in `state`, and wakes all others.
  void announce(EndState state) noexcept;
  /// Leaves the ring; says how.
  void leave(EndState how) noexcept;

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
  std::uint64_t next_ = 1;      ///< number of the next message
  std::uint32_t position_ = 0;  ///< chunk in which it stands
  bool left_ = false;

 private:
  [[nodiscard]] WaitEnd wait_asleep(std::function<bool()> const& done, std::function<bool()> const& lost,
                                    RingWait const& limits);

  Awake awake_{};
  std::atomic<bool> cancelled_{false};
};

/// The writing end. Messages are numbered from 1; number n stands in chunk (n - 1) mod `chunks`, and is written over
/// once every reader has taken it.
class RingWriter final : public RingEnd {
 public:
  struct Plan {
    std::size_t chunk_bytes = 0;
    std::uint32_t chunks = 1;
    int readers = 1;
  };
  [[nodiscard]] static std::unique_ptr<RingWriter> make(std::shared_ptr<NodeDomain> domain, Plan const& plan,
                                                        std::string const& name);
  ~RingWriter();

  /// Whether the next message has a place. Asks the readers only when it seems to have none.
  [[nodiscard]] bool has_room() noexcept;
  /// Publishes a message, which is two spans one behind the other; `has_room` has said yes. `IoError` when there is no
  /// memory for a large one.
  void put(std::span<std::byte const> head, std::span<std::byte const> body = {});
  /// Says that no message will follow. Idempotent.
  void close() noexcept;
  /// Whether every reader has taken everything, or has left.
  [[nodiscard]] bool drained() noexcept;
  /// Readers (from 0) that have died, or ended without closing their end.
  [[nodiscard]] std::vector<int> lost_readers() const;
  /// Readers that have not taken message `number`.
  [[nodiscard]] std::vector<int> readers_before(std::uint64_t number) const;
  /// Whether all readers have closed their ends.
  [[nodiscard]] bool deserted() const noexcept;
  /// Whether a rank of the node has left since the last call. One load.
  [[nodiscard]] bool somebody_departed() noexcept;
  [[nodiscard]] std::uint64_t taken_by(int reader) const noexcept;
  /// Rank on the node of whoever holds the reader's place, -1 when nobody does yet.
  [[nodiscard]] int rank_of(int reader) const noexcept;

 private:
  RingWriter(std::shared_ptr<NodeDomain> domain, std::uint32_t block, Slot ring);
  void put_large(std::byte* payload, std::span<std::byte const> head, std::span<std::byte const> body);
  void release_taken() noexcept;
  /// The number of messages that all readers have taken.
  [[nodiscard]] std::uint64_t slowest() const noexcept;

  struct Held {
    Slot slot;
    std::uint64_t number;  ///< of the message that stands there
  };
  std::byte* chunks_at_;
  Slot ring_;
  std::deque<Held> held_{};
  std::uint64_t floor_ = 0;  ///< all have taken this many, when last looked at
  std::uint32_t departures_ = 0;
};

/// A reading end: sees every message once, in order.
class RingReader final : public RingEnd {
 public:
  /// Takes place `reader` of the ring that `name` names. `UsageError` when the ring has ended or the place is taken,
  /// `FormatError` when what is written there makes no sense.
  [[nodiscard]] static std::unique_ptr<RingReader> attach(std::shared_ptr<NodeDomain> domain, RingName const& name,
                                                          int reader);
  ~RingReader();

  [[nodiscard]] bool has_message() const noexcept { return steps::published(chunk().number) >= next_; }
  /// The next message, in place; `has_message` has said yes. Readable until `take`. `FormatError` when it lies outside
  /// the writer's memory.
  [[nodiscard]] std::span<std::byte const> peek() const;
  /// Keeps the message of `peek` readable beyond `take`: null for one that stands in a chunk, else whatever keeps it.
  [[nodiscard]] std::shared_ptr<void const> keep() const;
  /// Done with the message: its place may be written over.
  void take() noexcept;
  /// Whether the writer has closed and everything is taken.
  [[nodiscard]] bool at_end() const noexcept;
  /// Whether the writer has died, or gone without closing, and nothing is left to read.
  [[nodiscard]] bool writer_lost() const noexcept;
  [[nodiscard]] int writer_rank() const noexcept { return writer_; }
  void close() noexcept;

 private:
  RingReader(std::shared_ptr<NodeDomain> domain, RingName const& name, int reader);
  void check();
  [[nodiscard]] QueueChunk const& chunk() const noexcept {
    return *reinterpret_cast<QueueChunk const*>(chunks_at_ + position_ * stride());
  }
  [[nodiscard]] QueueLarge large() const noexcept;

  int writer_;
  std::byte const* chunks_at_;
};

}  // namespace crossrank::node
