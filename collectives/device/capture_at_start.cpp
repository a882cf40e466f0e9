#include "collectives/device/capture_at_start.hpp"

#include <limits>

#include <crossrank/error.hpp>

#include "lib/device/cuda/capture.hpp"

namespace crossrank::device {

std::uint64_t CaptureAtStart::number_of(Stream const& stream) {
  if (!stream.is_capturing()) return 0;
  auto const* const own = cuda::Capture::of(stream);
  return own == nullptr ? std::numeric_limits<std::uint64_t>::max() : own->number();
}

void CaptureAtStart::require(Stream const& stream, char const* operation) const {
  if (holds(stream)) return;
  if (number_ == 0) {
    throw UsageError({.operation = operation,
                      .message =
                          "its stream is being captured since the call was started, and a graph would take up the "
                          "rest of the call",
                      .hint = "wait for a request before you capture its stream"});
  }
  throw UsageError({.operation = operation,
                    .message = "the capture in which the call was started has ended without it",
                    .hint = "wait for a request in the body of the capture"});
}

}  // namespace crossrank::device
