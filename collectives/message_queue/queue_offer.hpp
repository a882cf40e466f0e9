#pragma once
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/message_queue.hpp>

/// What ranks tell each other while they make a queue together.
namespace crossrank::queue {

/// Runs this rank's part of a step that all do; what it threw is thrown again once the others know.
class Part {
 public:
  template <class Body>
  void run(Body&& body) {
    try {
      body();
    } catch (std::exception const& e) {
      failure_ = std::current_exception();
      text_ = e.what();
    }
  }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_{};
  std::string text_{};
};

/// Collective: what each rank has to give for the queue, in rank order. Throws again what this rank's part has thrown;
/// `RemoteError` where another rank's has, `MismatchError` where the options differ.
[[nodiscard]] std::vector<std::vector<std::byte>> exchange(Collective const& group, QueueOptions const& options,
                                                           Part const& part, std::span<std::byte const> mine);

}  // namespace crossrank::queue
