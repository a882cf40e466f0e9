#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <crossrank/collective/check_level.hpp>
#include <crossrank/device.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/device/device_call.hpp"
#include "collectives/device/transport_call.hpp"
#include "collectives/device_transport/watched_transport.hpp"
#include "lib/node/group/device_recorder.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank::device {

/// The part of a group's state that calls on device tensors need: this rank's device, and the path of the tensors.
class DeviceGroup {
 public:
  DeviceGroup() = default;
  ~DeviceGroup();
  DeviceGroup(DeviceGroup const&) = delete;
  DeviceGroup& operator=(DeviceGroup const&) = delete;

  /// Decides with the other ranks how the group's collectives move device tensors: with a device transport, such as
  /// NCCL, where all ranks have the same one, else through host memory. The first collective on device tensors does so;
  /// later ones find the decision. Collective and blocking then; no collective may be under way on the transport.
  /// Messages need no decision.
  void decide(algorithms::Call const& call, CheckLevel check, spi::Transport& transport,
              spi::TimeoutPolicy const& timeout_policy);
  [[nodiscard]] bool is_decided() const noexcept { return is_decided_; }
  /// Returns the device that this rank uses in the group. Nothing before its first call on one.
  [[nodiscard]] std::optional<Device> own_device() const noexcept { return own_device_; }
  /// Throws `UsageError` when this rank uses another device in the group.
  void require_own_device(Device device, char const* operation, spi::Transport const& transport) const;
  /// Divides a call that goes through host memory; see `staged_pieces`. One of the device transport stays whole.
  [[nodiscard]] std::vector<algorithms::Call> pieces(algorithms::Call&& call) const;
  /// Returns whether the call, made now, lets its stream wait for a comparison: see `DeviceCall::hold`.
  [[nodiscard]] bool holds_stream(algorithms::Call const& call, CheckLevel check) const;
  /// Begins a call. `UsageError` when this rank has used another device in this group, and for a call that
  /// cannot be captured from a stream that is being captured.
  [[nodiscard]] std::unique_ptr<DeviceCall> begin(algorithms::Call const& call, spi::Transport& transport,
                                                  CheckLevel check);
  /// Returns whether the device transport has failed. One load.
  [[nodiscard]] bool has_failed() const noexcept { return on_device_ && on_device_->has_failed(); }
  /// Throws that failure.
  void throw_failure() const {
    if (on_device_) on_device_->throw_failure();
  }
  /// Makes the device transport fail on all ranks, so that their streams continue. Does nothing if the group has
  /// no device transport, or if that has failed already. Any thread.
  void abort(std::string_view why) noexcept;
  /// Waits for the work of the device transport, and returns the transport, which ends with the result. Keep that until
  /// all ranks have closed the group: a rank whose call has ended must not leave while another one is still in it.
  [[nodiscard]] std::shared_ptr<void> close() noexcept;
  /// Returns device memory that the device transport uses without copies of its own, or null where there is none.
  /// Collective, after `decide`; no collective may be under way on the transport. Errors as for
  /// `WatchedTransport::make_buffer`.
  [[nodiscard]] std::shared_ptr<spi::Storage> make_buffer(std::size_t bytes, spi::Transport& transport,
                                                          spi::TimeoutPolicy const& timeout_policy) {
    return on_device_ ? on_device_->make_buffer(bytes, transport, timeout_policy) : nullptr;
  }
  /// Returns the vendor's handle of the device transport, or null. It lives as long as the result, unless it is
  /// aborted.
  [[nodiscard]] std::shared_ptr<void> native() const noexcept;
  /// Returns the name of the device transport or "staged" as decided, "none" before.
  [[nodiscard]] std::string_view backend() const noexcept;

 private:
  /// Returns whether the device transport carries the call on the stream. The others go through host memory.
  [[nodiscard]] bool uses_transport(algorithms::Call const& call, Stream const& stream) const {
    return on_device_ && on_device_->carries(call, stream);
  }
  /// Begins a call whose tensors are in one run of bytes.
  [[nodiscard]] std::unique_ptr<DeviceCall> begin_unpacked(algorithms::Call const& call, spi::Transport& transport,
                                                           CheckLevel check);
  /// Prepares the device transport of a group that ends, and that the caller drops.
  static void prepare_end(std::shared_ptr<WatchedTransport> const& on_device) noexcept;
  /// Returns how the ranks compare a call of the device transport.
  [[nodiscard]] TransportCall::Comparison comparison_on(Stream const& stream, CheckLevel check) const;
  /// Begins a message: its payload stays on the GPU where the transport can leave it there.
  [[nodiscard]] std::unique_ptr<DeviceCall> begin_message(algorithms::Call const& call, spi::Transport& transport,
                                                          Stream stream);
  /// Throws when a graph is being captured from the stream and the call cannot be a part of it.
  void require_capturable(algorithms::Call const& call, Stream const& stream) const;

  std::optional<Device> own_device_{};  ///< of this rank's tensors: that of its first collective or message on a device
  bool is_decided_ = false;
  std::mutex mutex_{};  ///< guards writes of `on_device_`, and reads outside the group's lock
  std::shared_ptr<WatchedTransport> on_device_{};   ///< null: staged, or not decided
  std::shared_ptr<StagingBuffers> staging_{};       ///< from the first staged call on
  std::optional<node::DeviceRecorder> recorder_{};  ///< likewise
  std::uint64_t staged_ = 0;                        ///< number of collectives that have gone through host memory
  std::uint64_t messages_ = 0;                      ///< number of messages
};

}  // namespace crossrank::device
