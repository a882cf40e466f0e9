#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "collectives/device/device_call.hpp"
#include "collectives/device_transport/enqueue_position.hpp"
#include "collectives/device_transport/watched_transport.hpp"

namespace crossrank::device {

/// A collective on device tensors that a device transport carries out. On the CPU transport the ranks only compare
/// their arguments.
class TransportCall final : public DeviceCall {
 public:
  /// `is_checked`: whether the ranks compare arguments; then the host waits until all ranks have made the call.
  TransportCall(algorithms::Call const& call, bool is_checked, std::shared_ptr<WatchedTransport> transport,
                Stream stream);

  [[nodiscard]] algorithms::Call on_host(std::chrono::milliseconds timeout) override;
  [[nodiscard]] bool is_next_to_enqueue() const noexcept override { return position_.is_next(); }
  [[nodiscard]] std::string next_to_enqueue() const override { return position_.next_call(); }
  void release_position() noexcept override { position_.release(); }
  void finish() override;
  [[nodiscard]] Event const& ended() const noexcept override { return ended_; }
  [[nodiscard]] bool is_captured() const noexcept override { return is_captured_; }
  [[nodiscard]] Stream const& stream() const noexcept override { return stream_; }

 private:
  algorithms::Call const call_;
  bool is_checked_;
  std::shared_ptr<WatchedTransport> transport_;
  Stream stream_;
  std::shared_ptr<spi::Storage> scratch_;  ///< of a reduction in rank order
  EnqueuePosition position_;
  Event ended_{};
  bool is_captured_ = false;
};

}  // namespace crossrank::device
