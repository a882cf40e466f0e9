#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/node/queue/message_parts.hpp"
#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::node {

/// The writer's endpoint. Messages are numbered from 1. Message n goes to chunk (n - 1) mod `chunks`, which is
/// overwritten once every reader has taken its message.
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
  /// Returns whether the next message, of `bytes`, has memory. If messages that readers have not taken yet fill the
  /// arena, it has none until they take one. If nothing would help, returns true: `put` throws.
  [[nodiscard]] bool has_memory(std::size_t bytes);
  /// Returns the message that all readers must have taken before the next one has a place and memory, as far as the
  /// last checks have shown; 0 if there is none.
  [[nodiscard]] std::uint64_t awaited_message() const noexcept;
  /// Publishes a message, the concatenation of `parts`, after `has_space` has returned true. `UnavailableError` when
  /// there is no memory for a large one; errors of `MessagePart::read`. After an error the message has not been sent.
  void put(MessageParts parts);
  /// Announces that no message will follow. Idempotent.
  void close() noexcept;
  /// Returns whether every reader has taken everything, or has left.
  [[nodiscard]] bool drained() noexcept;
  /// Returns why the queue has failed: a reader has died or ended without closing, or another endpoint has found such
  /// a reason. Decides that for all endpoints if none has decided before.
  [[nodiscard]] std::optional<RingFailure> find_failure();
  /// Returns the ranks of the job that this endpoint waits for until all have taken message `number`.
  [[nodiscard]] std::vector<int> waited_for(std::uint64_t number) const;
  /// Returns the readers that have not taken message `number`.
  [[nodiscard]] std::vector<int> readers_before(std::uint64_t number) const;
  /// Returns whether all readers have closed their endpoints.
  [[nodiscard]] bool has_no_readers() const noexcept;
  using RingEndpoint::has_new_departure;
  [[nodiscard]] std::uint64_t taken_by(int reader) const noexcept;
  /// Returns the rank on the node that holds the reader's place; -1 when none does yet.
  [[nodiscard]] int rank_of(int reader) const noexcept;

 private:
  RingWriter(std::shared_ptr<NodeComm> comm, std::uint32_t block, Slot ring, QueueHeader const& queue);
  void put_large(std::byte* payload, MessageParts parts, std::size_t bytes);
  void release_taken() noexcept;
  /// Returns the number of messages that all readers have taken.
  [[nodiscard]] std::uint64_t slowest() const noexcept;

  struct Held {
    Slot slot;
    std::uint64_t number = 0;  ///< of the message in this place
  };
  std::byte* chunks_at_;
  Slot ring_;
  std::deque<Held> held_{};
  std::optional<Slot> place_{};                 ///< of the next message, if it is large
  std::size_t full_with_ = SIZE_MAX;            ///< messages in `held_` when the arena was full
  std::size_t refused_bytes_ = 0;               ///< for which it had no memory then
  std::chrono::nanoseconds search_again_at_{};  ///< the time of the next search for memory
  std::uint64_t floor_ = 0;                     ///< messages that all readers had taken at the last check
};

}  // namespace crossrank::node
