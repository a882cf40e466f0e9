#pragma once
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>

/// What ranks tell each other while they make a queue together.
namespace crossrank::queue {

/// Runs this rank's part of a step that all do; what it threw is thrown again once the others know.
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
  /// Whether it lacked what the group as a whole then lacks.
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

/// What the writer says of its ring: who has a place in it, and its handle. Nothing: there is no ring.
struct RingOffer {
  std::vector<int> readers{};  ///< in the order of their places
  std::vector<std::byte> handle{};
};
[[nodiscard]] std::vector<std::byte> write_offer(std::vector<int> const& readers, std::vector<std::byte> const& handle);
/// `FormatError` for bytes that `write_offer` has not made, or ranks beyond `world_size`.
[[nodiscard]] RingOffer read_offer(std::span<std::byte const> bytes, int world_size);

/// Collective: what each rank has to give for the queue, in rank order. Throws again what this rank's part has thrown;
/// `RemoteError` where another rank's has, `MismatchError` where the options differ.
[[nodiscard]] std::vector<std::vector<std::byte>> exchange(Collective const& group, QueueOptions const& options,
                                                           LocalStep const& part, std::span<std::byte const> mine);

}  // namespace crossrank::queue
