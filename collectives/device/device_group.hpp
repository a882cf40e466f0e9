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
#include "collectives/nccl/nccl_group.hpp"
#include "lib/node/group/device_recorder.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank::device {

/// The part of a group's state that calls on device tensors need: this rank's device, and the path of the tensors.
class DeviceGroup {
 public:
  /// Decides with the other ranks how the group's collectives move device tensors: with NCCL where all ranks can, else
  /// through host memory. The first collective on device tensors does so; later ones find the decision. Collective and
  /// blocking then; no collective may be under way on the transport. Messages need no decision.
  void decide(algorithms::Call const& call, CheckLevel check, spi::Transport& transport,
              spi::TimeoutPolicy const& timeout_policy);
  [[nodiscard]] bool is_decided() const noexcept { return is_decided_; }
  /// Divides a call that goes through host memory; see `staged_pieces`. One of NCCL stays whole.
  [[nodiscard]] std::vector<algorithms::Call> pieces(algorithms::Call&& call) const;
  /// Begins a call. `UsageError` when this rank has used another device in this group, and for a call that
  /// cannot be captured from a stream that is being captured.
  [[nodiscard]] std::unique_ptr<DeviceCall> begin(algorithms::Call const& call, spi::Transport const& transport,
                                                  CheckLevel check);
  /// Returns whether NCCL's part of the group has failed. One load.
  [[nodiscard]] bool has_failed() const noexcept { return nccl_ && nccl_->has_failed(); }
  /// Throws that failure.
  void throw_failure() const {
    if (nccl_) nccl_->throw_failure();
  }
  /// Makes NCCL's part of the group fail on all ranks, so that their streams go on. Does nothing where NCCL has no part
  /// or has failed. Any thread.
  void abort(std::string_view why) noexcept;
  /// Ends the communicator, after its work.
  void close() noexcept;
  /// Returns device memory that NCCL uses without copies of its own, or null where NCCL does not carry the group's
  /// collectives. Collective, after `decide`; no collective may be under way on the transport. Errors as for
  /// `NcclGroup::make_buffer`.
  [[nodiscard]] std::shared_ptr<spi::Storage> make_buffer(std::size_t bytes, spi::Transport& transport,
                                                          spi::TimeoutPolicy const& timeout_policy) {
    return nccl_ ? nccl_->make_buffer(bytes, transport, timeout_policy) : nullptr;
  }
  /// Returns NCCL's communicator, or null. It lives as long as the result, unless it is aborted.
  [[nodiscard]] std::shared_ptr<void> native() const noexcept;
  /// Returns "nccl" or "staged" as decided, "none" before.
  [[nodiscard]] std::string_view backend() const noexcept;

 private:
  /// Returns whether NCCL carries the call on the stream. The others go through host memory. A min or max of floats is
  /// one of them, except in a captured graph.
  [[nodiscard]] bool uses_nccl(algorithms::Call const& call, Stream const& stream) const;
  /// Begins a call whose tensors are in one run of bytes.
  [[nodiscard]] std::unique_ptr<DeviceCall> begin_unpacked(algorithms::Call const& call,
                                                           spi::Transport const& transport, CheckLevel check);
  /// Throws when a graph is being captured from the stream and the call cannot be a part of it.
  void require_capturable(algorithms::Call const& call, Stream const& stream) const;
  void require_own_device(algorithms::Call const& call, spi::Transport const& transport);

  std::optional<Device> own_device_{};  ///< of this rank's tensors, as its first call on a device has chosen it
  bool is_decided_ = false;
  std::mutex nccl_mutex_{};                         ///< guards writes of `nccl_`, and reads outside the group's lock
  std::shared_ptr<nccl::NcclGroup> nccl_{};         ///< null: staged, or not decided
  std::shared_ptr<StagingBuffers> staging_{};       ///< from the first staged call on
  std::optional<node::DeviceRecorder> recorder_{};  ///< likewise
  std::uint64_t staged_ = 0;                        ///< number of collectives that have gone through host memory
  std::uint64_t messages_ = 0;                      ///< number of messages
};

}  // namespace crossrank::device
