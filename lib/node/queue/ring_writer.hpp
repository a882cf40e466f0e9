#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::node {

/// A message that stands in several places.
using MessageParts = std::span<std::span<std::byte const> const>;

/// The writing end. Messages are numbered from 1; number n stands in chunk (n - 1) mod `chunks`, and is written over
/// once every reader has taken it.
class RingWriter final : public RingEndpoint {
 public:
  struct Plan {
    std::size_t chunk_bytes = 0;
    std::uint32_t chunks = 1;
    int readers = 1;
  };
  [[nodiscard]] static std::unique_ptr<RingWriter> make(std::shared_ptr<NodeComm> comm, Plan const& plan,
                                                        std::string const& name);
  ~RingWriter();
  RingWriter(RingWriter const&) = delete;
  RingWriter& operator=(RingWriter const&) = delete;

  /// Returns whether the next message has a place. Asks the readers only when it seems to have none.
  [[nodiscard]] bool has_space() noexcept;
  /// Publishes a message, which is `parts` one behind the other; `has_space` has said yes. `UnavailableError` when
  /// there is no memory for a large one.
  void put(MessageParts parts);
  /// Says that no message will follow. Idempotent.
  void close() noexcept;
  /// Returns whether every reader has taken everything, or has left.
  [[nodiscard]] bool drained() noexcept;
  /// Why the queue cannot go on: a reader has died, or ended without closing its end, or another end has found such a
  /// reason. Decides so for all ends if nobody has before.
  [[nodiscard]] std::optional<RingFailure> find_failure();
  /// Whom this end waits for while message `number` is not taken by all: ranks of the job.
  [[nodiscard]] std::vector<int> waited_for(std::uint64_t number) const;
  /// Readers that have not taken message `number`.
  [[nodiscard]] std::vector<int> readers_before(std::uint64_t number) const;
  /// Returns whether all readers have closed their ends.
  [[nodiscard]] bool has_no_readers() const noexcept;
  using RingEndpoint::has_new_departure;
  [[nodiscard]] std::uint64_t taken_by(int reader) const noexcept;
  /// Rank on the node of whoever holds the reader's place, -1 when nobody does yet.
  [[nodiscard]] int rank_of(int reader) const noexcept;

 private:
  RingWriter(std::shared_ptr<NodeComm> comm, std::uint32_t block, Slot ring, QueueHeader const& queue);
  void put_large(std::byte* payload, MessageParts parts, std::size_t bytes);
  void release_taken() noexcept;
  /// The number of messages that all readers have taken.
  [[nodiscard]] std::uint64_t slowest() const noexcept;

  struct Held {
    Slot slot;
    std::uint64_t number = 0;  ///< of the message that stands there
  };
  std::byte* chunks_at_;
  Slot ring_;
  std::deque<Held> held_{};
  std::uint64_t floor_ = 0;  ///< all have taken this many, when last looked at
};

}  // namespace crossrank::node
