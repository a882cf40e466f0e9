#pragma once
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

/// The messages that ranks exchange while they create a queue together.
namespace crossrank::queue {

/// Runs this rank's part of a collective step. Keeps its exception until the other ranks have been told.
class LocalStep {
 public:
  template <class Body>
  void run(Body&& body) {
    try {
      body();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  /// Returns what the body has thrown; null for nothing.
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_{};
};

/// The writer's description of its ring: the readers with a place in it, and its handle. Empty: there is no ring.
struct RingOffer {
  std::vector<int> readers{};  ///< in the order of their places
  std::vector<std::byte> handle{};
};
[[nodiscard]] std::vector<std::byte> write_offer(std::vector<int> const& readers, std::vector<std::byte> const& handle);
/// Throws `FormatError` for bytes that `write_offer` cannot have written, or ranks beyond `world_size`.
[[nodiscard]] RingOffer read_offer(std::span<std::byte const> bytes, int world_size);

/// Returns the contributions of all ranks to the queue, in rank order. Collective. Rethrows the exception of this
/// rank's part. Throws `RemoteError` when another rank's part failed, `MismatchError` when the options differ.
[[nodiscard]] std::vector<std::vector<std::byte>> exchange(Collective const& group, QueueOptions const& options,
                                                           LocalStep const& part, std::span<std::byte const> mine);

}  // namespace crossrank::queue
