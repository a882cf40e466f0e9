#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "collectives/device/device_call.hpp"
#include "collectives/device_transport/enqueue_position.hpp"
#include "collectives/device_transport/watched_transport.hpp"

namespace crossrank::device {

/// A collective on device tensors that a device transport carries out. The ranks at most compare their arguments on
/// the CPU.
class TransportCall final : public DeviceCall {
 public:
  /// How the ranks compare their arguments.
  enum class Comparison : std::uint8_t {
    none,
    in_table,   ///< with those of the ranks that have made the call; see `WatchedTransport::compare`
    on_stream,  ///< in a round of the CPU transport, while the stream waits until all ranks have made the call
    on_host     ///< likewise, while the host waits
  };
  TransportCall(algorithms::Call const& call, Comparison comparison, std::shared_ptr<WatchedTransport> transport,
                Stream stream);

  [[nodiscard]] algorithms::Call on_host(std::chrono::milliseconds timeout) override;
  [[nodiscard]] OnCompared hold() override;
  [[nodiscard]] bool is_next_to_enqueue() const noexcept override { return position_.is_next(); }
  [[nodiscard]] std::string next_to_enqueue() const override { return position_.next_call(); }
  void release_position() noexcept override { position_.release(); }
  void finish() override;
  [[nodiscard]] Event const& ended() const noexcept override { return ended_; }
  [[nodiscard]] bool is_captured() const noexcept override { return is_captured_; }
  [[nodiscard]] Stream const& stream() const noexcept override { return stream_; }

 private:
  algorithms::Call const call_;
  Comparison comparison_;
  std::shared_ptr<WatchedTransport> transport_;
  Stream stream_;
  std::shared_ptr<spi::Storage> scratch_;  ///< of a reduction in rank order
  EnqueuePosition position_;
  std::optional<std::uint32_t> held_{};  ///< number of the comparison for which the stream waits
  Event ended_{};
  bool is_captured_ = false;
};

}  // namespace crossrank::device
