#pragma once
#include <chrono>
#include <cstddef>
#include <memory>

#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/device/device_call.hpp"
#include "lib/node/group/device_recorder.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank::device {

/// A call on device tensors that runs on the CPU transport: its inputs are copied to page-locked host memory, the call
/// runs there, and its results are copied back in the order of a stream. A receive may find the payload on the sender's
/// GPU instead, and copies it from there.
class StagedCall final : public DeviceCall {
 public:
  /// Enqueues the copies to the host on `stream`. `is_source`: this rank is the root of a broadcast. `note` is
  /// the call's place in the flight recorder.
  StagedCall(algorithms::Call const& call, bool is_source, std::shared_ptr<StagingBuffers> buffers, Stream stream,
             node::DeviceFlightNote note);
  /// Gives the buffers back.
  ~StagedCall() override;
  StagedCall(StagedCall const&) = delete;
  StagedCall& operator=(StagedCall const&) = delete;

  /// Blocks the host until the inputs are there, and returns the same call on host memory.
  [[nodiscard]] algorithms::Call on_host(std::chrono::milliseconds timeout) override;
  /// Enqueues the copy of the results to the device.
  void finish() override;
  [[nodiscard]] Event const& ended() const noexcept override { return ended_; }
  [[nodiscard]] Stream const& stream() const noexcept override { return stream_; }

 private:
  /// Keeps the source of the copies to the host, which the stream may not have passed when a call has failed.
  void keep_source() const noexcept;
  /// Enqueues the copy of a payload that a receive has found on the sender's GPU.
  void copy_from_sender(DevicePayload&& found);

  algorithms::Call const call_;
  bool is_source_;
  std::shared_ptr<StagingBuffers> buffers_;
  Stream stream_;
  StagingBuffers::Buffer in_{};
  StagingBuffers::Buffer out_{};
  Event copied_{};  ///< the inputs are on the host
  Event ended_{};
  node::DeviceFlightNote note_;
  bool is_finished_ = false;
};

}  // namespace crossrank::device
