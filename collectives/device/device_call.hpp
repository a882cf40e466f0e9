#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <string>

#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"

namespace crossrank::device {

/// A call on device tensors under way. It has a part on the CPU transport, then a part on a stream of the device.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;

  /// Returns the part for the CPU transport. May block the host for work of the device.
  [[nodiscard]] virtual algorithms::Call on_host(std::chrono::milliseconds timeout) = 0;
  /// Takes the error of a comparison, or null.
  using OnCompared = std::function<void(std::exception_ptr const&)>;
  /// Lets the stream wait for the part on the CPU transport, which only compares, in place of the host: `finish` may be
  /// called before that part has ended. The caller calls the result at its end. See `DeviceGroup::holds_stream`.
  [[nodiscard]] virtual OnCompared hold() { return {}; }
  /// Returns whether `finish` may be called: earlier calls of this thread on the GPU come first.
  [[nodiscard]] virtual bool is_next_to_enqueue() const noexcept { return true; }
  /// Returns the name of the call that must be enqueued before this one, for errors.
  [[nodiscard]] virtual std::string next_to_enqueue() const { return {}; }
  /// Lets later calls go first, because this one has failed.
  virtual void release_position() noexcept {}
  /// Enqueues the rest on the stream. Call it once the part on the host has ended, and the call is the next one.
  virtual void finish() = 0;
  /// Returns the end of the whole call in the order of the stream; call `finish` first.
  [[nodiscard]] virtual Event const& ended() const noexcept = 0;
  /// Returns whether the call is a part of a graph, so that it is not done now.
  [[nodiscard]] virtual bool is_captured() const noexcept { return false; }
  /// Returns the stream, the current one when the call was made.
  [[nodiscard]] virtual Stream const& stream() const noexcept = 0;
};

}  // namespace crossrank::device
