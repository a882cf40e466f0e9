#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::node {

/// A reading end: sees every message once, in order.
class RingReader final : public RingEndpoint {
 public:
  /// Takes place `reader` of the ring that `name` names. `UsageError` when the ring has ended or the place is taken,
  /// `PeerLostError` when it has ended because a rank was lost,
  /// `FormatError` when what is written there makes no sense.
  [[nodiscard]] static std::unique_ptr<RingReader> attach(std::shared_ptr<NodeComm> const& comm, RingId const& name,
                                                          int reader);
  ~RingReader();
  RingReader(RingReader const&) = delete;
  RingReader& operator=(RingReader const&) = delete;

  [[nodiscard]] bool has_message() const noexcept { return atomic_ops::published(chunk().number) >= next_; }
  /// The next message, in place; `has_message` has said yes. Readable until `take`. `FormatError` when it lies outside
  /// the writer's memory.
  [[nodiscard]] std::span<std::byte const> peek() const;
  /// Keeps the message of `peek` readable beyond `take`: null for one that stands in a chunk, else whatever keeps it.
  [[nodiscard]] std::shared_ptr<void const> keep() const;
  /// Done with the message: its place may be written over.
  void take() noexcept;
  /// Returns whether the writer has closed in order and everything is taken.
  [[nodiscard]] bool at_end() const noexcept;
  /// Why no message will come, once all that was written is read: the queue has failed, the writer has died or gone
  /// without closing, or another reader has died. Decides so for all ends if nobody has before.
  [[nodiscard]] std::optional<RingFailure> find_failure();
  /// Whom this end waits for, ranks of the job: the writer, or those that the writer itself waits for.
  [[nodiscard]] std::vector<int> waited_for() const;
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
