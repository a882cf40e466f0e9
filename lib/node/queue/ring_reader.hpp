#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <crossrank/spi/mapped_storage.hpp>

#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::node {

/// A reader's endpoint: receives every message once, in order.
class RingReader final : public RingEndpoint {
 public:
  /// Takes place `reader` of the ring `name`. `UsageError` when the ring has ended or the place is taken.
  /// `PeerLostError` when the ring has ended because a rank was lost. `FormatError` when its block contains impossible
  /// values.
  [[nodiscard]] static std::unique_ptr<RingReader> attach(std::shared_ptr<NodeComm> const& comm, RingId const& name,
                                                          int reader);
  ~RingReader();
  RingReader(RingReader const&) = delete;
  RingReader& operator=(RingReader const&) = delete;

  [[nodiscard]] bool has_message() const noexcept { return atomic_ops::published(chunk().number) >= next_; }
  /// Returns the next message in place, after `has_message` has returned true. Valid until `take`. `FormatError` when
  /// it lies outside the writer's memory.
  [[nodiscard]] std::span<std::byte const> peek() const;
  /// Returns an owner that keeps the message of `peek` readable beyond `take`; null for a message in a chunk.
  [[nodiscard]] std::shared_ptr<void const> keep() const;
  /// Returns where the message of `peek` is in the writer's memory.
  [[nodiscard]] spi::Backing backing() const { return comm_->backing_of(writer_, peek().data()); }
  /// Finishes the message: its place may be overwritten.
  void take() noexcept;
  /// Returns whether the writer has closed cleanly and everything is taken.
  [[nodiscard]] bool at_end() const noexcept;
  /// Returns why no message will come, once all messages are read: the queue has failed, the writer has died or left
  /// without closing, or another reader has died. Decides that for all endpoints if none has decided before.
  [[nodiscard]] std::optional<RingFailure> find_failure();
  /// Returns the ranks of the job that this endpoint waits for: the writer, or those that the writer itself waits for.
  [[nodiscard]] RingFailure waited_for() const;
  [[nodiscard]] int writer_rank() const noexcept { return writer_; }
  void close() noexcept;

 private:
  RingReader(std::shared_ptr<NodeComm> comm, RingId const& name, int reader);
  void check();
  [[nodiscard]] QueueChunk const& chunk() const noexcept {
    return *reinterpret_cast<QueueChunk const*>(chunks_at_ + position_ * stride());
  }
  [[nodiscard]] QueueLarge large() const noexcept;

  int writer_;
  std::byte const* chunks_at_;
};

}  // namespace crossrank::node
