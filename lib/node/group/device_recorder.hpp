#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <crossrank/spi/node_memory.hpp>

#include "lib/node/group/node_comm.hpp"
#include "lib/node/inspect/device_flight.hpp"

namespace crossrank::node {

/// The entry of an operation on a device that is under way, for the stages that follow. Empty: nothing is recorded.
/// Any thread.
class DeviceFlightNote {
 public:
  DeviceFlightNote() = default;
  DeviceFlightNote(std::shared_ptr<NodeComm> comm, std::uint64_t number) noexcept
      : comm_(std::move(comm)), number_(number) {}

  /// Records that the operation has reached a later stage.
  void advance(DeviceStage stage) const noexcept;

 private:
  std::shared_ptr<NodeComm> comm_{};
  std::uint64_t number_ = 0;
};

/// Records the operations of a group on devices in this rank's part of the control segment, where `crossrank inspect`
/// finds them. Without shared memory of the node it records nothing.
class DeviceRecorder {
 public:
  DeviceRecorder() = default;
  /// `memory` is the group's part of the node's memory, or null. `global_ranks` are its ranks as those of the job.
  DeviceRecorder(std::shared_ptr<spi::NodeMemory> const& memory, std::span<int const> global_ranks);

  /// Records an operation that this rank is about to enqueue. Sets block and number of ranks; `root` is a rank of the
  /// group.
  [[nodiscard]] DeviceFlightNote note(DeviceFlightOperation operation) const noexcept;

 private:
  std::shared_ptr<NodeComm> comm_{};
  std::uint32_t block_ = 0;
  std::vector<int> global_ranks_{};
};

}  // namespace crossrank::node
