#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/inspect/device_flight.hpp"

/// What a job's ranks do on their devices, as its control segment shows it. All ranks are ranks of the job.
namespace crossrank::node {

/// An operation of a rank on a device.
struct DeviceOperationView {
  std::string name{};  ///< of the call for the user
  spi::OpKind op_kind = spi::OpKind::none;
  DevicePath path = DevicePath::none;
  std::string group{};             ///< empty when it has ended
  std::uint32_t block = 0;         ///< number of the group on its node
  std::uint64_t sequence = 0;      ///< among the operations of the group that take the same path
  std::uint64_t bytes = 0;         ///< of this rank's part
  int device = 0;                  ///< its number in the rank's process
  std::uint64_t stream = 0;        ///< the vendor's handle in that process; 0 is the default stream
  std::uint64_t communicator = 0;  ///< the vendor's handle in that process; 0 for none
  int group_ranks = 0;             ///< ranks of the group, also those of other nodes
  std::optional<int> root{};       ///< root of a collective or partner of a message
  DeviceStage stage = DeviceStage::calling;
  double age = 0;                       ///< seconds since the call
  std::optional<double> started_age{};  ///< seconds since it was seen to have started
  std::optional<double> ended_age{};    ///< seconds since it was seen to have ended, or was given up
};

/// The oldest operation of a group on devices that a rank of this node has not ended.
struct DeviceCallView {
  std::string name{};  ///< of the call for the user
  spi::OpKind op_kind = spi::OpKind::none;
  DevicePath path = DevicePath::none;
  std::uint64_t sequence = 0;
  std::optional<int> root{};
  std::vector<int> started{};    ///< ranks that have started it
  std::vector<int> enqueued{};   ///< ranks that have enqueued it and not started it
  std::vector<int> ended{};      ///< ranks that have ended it
  std::vector<int> missing{};    ///< ranks that have not enqueued it
  std::vector<int> different{};  ///< ranks that made another call under its number
};

/// The operations of one rank.
struct DeviceOperationsOfRank {
  int rank = 0;
  std::vector<DeviceOperationView> const* operations = nullptr;
};

[[nodiscard]] char const* to_string(DeviceStage stage) noexcept;
[[nodiscard]] char const* to_string(DevicePath path) noexcept;

/// Returns the view of an entry; `now` are monotonic nanoseconds. Leaves out the name of the group.
[[nodiscard]] DeviceOperationView view_device_operation(DeviceFlightRecord const& record, std::uint64_t now);

/// Returns the oldest collective of the group of `block` that one of `ranks` has called and not ended, or nothing.
[[nodiscard]] std::optional<DeviceCallView> view_device_call(std::uint32_t block,
                                                             std::vector<DeviceOperationsOfRank> const& ranks);

}  // namespace crossrank::node
