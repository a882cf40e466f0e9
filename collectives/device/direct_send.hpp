#pragma once
#include <chrono>
#include <memory>

#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/device/device_call.hpp"
#include "lib/node/group/device_recorder.hpp"

namespace crossrank::device {

/// A send whose payload stays on the GPU: it is copied into memory there that the receiver has opened.
class DirectSend final : public DeviceCall {
 public:
  /// Enqueues the copy into `slot` on `stream`. `note` is the call's place in the flight recorder.
  DirectSend(algorithms::Call const& call, DeviceMessages& messages, std::shared_ptr<DeviceSlot> slot, Stream stream,
             node::DeviceFlightNote note);
  ~DirectSend() override;
  DirectSend(DirectSend const&) = delete;
  DirectSend& operator=(DirectSend const&) = delete;

  /// Blocks the host until the copy has been made, as a send through host memory does: the receiver then needs no event
  /// of another process.
  [[nodiscard]] algorithms::Call on_host(std::chrono::milliseconds timeout) override;
  void release_position() noexcept override { slot_ = nullptr; }
  void finish() override;
  [[nodiscard]] Event const& ended() const noexcept override { return copied_; }
  [[nodiscard]] Stream const& stream() const noexcept override { return stream_; }

 private:
  algorithms::Call const call_;
  DeviceMessages& messages_;
  std::shared_ptr<DeviceSlot> slot_;
  Stream stream_;
  Event copied_{};
  node::DeviceFlightNote note_;
  bool is_finished_ = false;
};

}  // namespace crossrank::device
