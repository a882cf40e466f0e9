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
    } catch (std::exception const& e) {
      failure_ = std::current_exception();
      text_ = e.what();
      auto const* const known = dynamic_cast<Error const*>(&e);
      unavailable_ = known != nullptr && known->code() == ErrorCode::unavailable;
    }
  }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  /// Returns whether it failed because of something that the whole group lacks.
  [[nodiscard]] bool unavailable() const noexcept { return unavailable_; }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_{};
  std::string text_{};
  bool unavailable_ = false;
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
