#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Throws `UsageError` while a graph is being captured from the stream, because the host takes part in `operation`.
/// `hint` says what to do instead.
void require_no_capture(Stream const& stream, char const* operation,
                        char const* hint = "end the capture before the call");

/// Copies of several tensors from GPUs to page-locked host memory, for which the host waits once.
class HostCopies {
 public:
  /// `operation` names the caller in errors.
  explicit HostCopies(char const* operation) noexcept : operation_(operation) {}

  /// Prepares the copy of a tensor: `UsageError` while the current stream of its GPU is being captured. Call it before
  /// anything else that a capture forbids.
  void prepare(Tensor const& from);
  /// Enqueues a copy to `to` on the current stream of the tensor's GPU. `BackendError` when the device fails.
  void add(std::byte* to, Tensor const& from);
  /// Blocks the host until all copies have ended. Costs one event per GPU. Errors as for `Event::synchronize`.
  void wait(std::chrono::milliseconds timeout);
  /// After an error: returns a function that says whether the copies have ended. It keeps the tensors alive, and never
  /// throws. Until it returns true, the memory must neither be used nor unmapped.
  [[nodiscard]] std::function<bool()> ended() const;

 private:
  char const* operation_;
  std::vector<Stream> streams_{};  ///< one per GPU
  std::vector<Tensor> sources_{};
};

}  // namespace crossrank
