#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/memory/device_flight_layout.hpp"

namespace crossrank::node {

/// An operation of a rank on a device in its flight ring.
struct DeviceFlightOperation {
  spi::OpKind op_kind = spi::OpKind::none;
  DevicePath path = DevicePath::none;
  std::uint32_t block = 0;         ///< of the group
  int ranks = 0;                   ///< of the group
  std::optional<int> root{};       ///< root of a collective or partner of a message, as a rank of the job
  int device = 0;                  ///< its number in the process
  std::uint64_t sequence = 0;      ///< among the operations of the group that take the same path
  std::uint64_t bytes = 0;         ///< of this rank's part
  std::uint64_t communicator = 0;  ///< the vendor's handle
  std::uint64_t stream = 0;        ///< the vendor's handle
  std::array<char, 24> name{};     ///< of the call for the user, cut to this length; padded with NUL
};
static_assert(sizeof DeviceFlightOperation::name == sizeof DeviceFlightEntry::name);

/// Writes an entry at the stage `calling`, and returns its number. Any thread of the rank.
[[nodiscard]] std::uint64_t write_device_flight(DeviceFlightRing& ring, DeviceFlightOperation const& operation,
                                                std::uint64_t now) noexcept;
/// Writes that the entry `number` has reached a later stage. Does nothing once a newer entry has its place.
void advance_device_flight(DeviceFlightRing& ring, std::uint64_t number, DeviceStage stage, std::uint64_t now) noexcept;

/// An entry of the ring as it is.
struct DeviceFlightRecord {
  DeviceFlightOperation operation{};
  std::uint64_t number = 0;      ///< from 1, counts entries
  std::uint64_t called_at = 0;   ///< monotonic nanoseconds
  std::uint64_t started_at = 0;  ///< 0: not yet
  std::uint64_t ended_at = 0;    ///< 0: not yet
  DeviceStage stage = DeviceStage::calling;
};

/// Returns the entries, oldest first. The owner may be writing or dead, and may have written anything.
[[nodiscard]] std::vector<DeviceFlightRecord> read_device_flight(DeviceFlightRing const& ring);

}  // namespace crossrank::node
