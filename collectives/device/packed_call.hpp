#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "collectives/algorithms/call.hpp"
#include "collectives/device/device_call.hpp"

namespace crossrank::device {

/// A call on several tensors of a GPU as one: they are packed into a buffer on the GPU before the call, and its results
/// are unpacked after it. Both are copies on the call's stream.
class PackedCall final : public DeviceCall {
 public:
  /// Begins a call on the buffer alone.
  using Begin = std::function<std::unique_ptr<DeviceCall>(algorithms::Call const&)>;

  /// Enqueues the packing on the current stream of the GPU, then begins the call.
  PackedCall(algorithms::Call const& call, Begin const& begin);

  [[nodiscard]] algorithms::Call on_host(std::chrono::milliseconds timeout) override;
  [[nodiscard]] OnCompared hold() override { return inner_->hold(); }
  [[nodiscard]] bool is_next_to_enqueue() const noexcept override { return inner_->is_next_to_enqueue(); }
  [[nodiscard]] std::string next_to_enqueue() const override { return inner_->next_to_enqueue(); }
  void release_position() noexcept override { inner_->release_position(); }
  void finish() override;
  [[nodiscard]] Event const& ended() const noexcept override { return ended_; }
  [[nodiscard]] bool is_captured() const noexcept override { return inner_->is_captured(); }
  [[nodiscard]] Stream const& stream() const noexcept override { return inner_->stream(); }

 private:
  std::function<void()> unpack_;
  std::unique_ptr<DeviceCall> inner_{};
  Event ended_{};
};

}  // namespace crossrank::device
