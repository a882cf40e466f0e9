#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// An operation of a rank in its flight ring.
struct FlightOperation {
  spi::OpKind op_kind = spi::OpKind::none;
  std::uint32_t block = 0;  ///< of the group or queue
  std::uint64_t round = 0;  ///< of the group, or number of the message
  std::uint64_t bytes = 0;  ///< of this rank's part
  std::uint32_t peer = 0;   ///< of a message, as a rank of its group
};

/// Writes an entry with plain stores. At most one thread of each kind writes at a time. Successive messages that a
/// thread sends or takes in one queue share an entry, so that a busy queue does not displace all others.
void write_flight(FlightRing& ring, FlightThread thread, FlightOperation const& note, std::uint32_t at) noexcept;

/// Returns the entries of a flight ring, oldest first. The owner may be writing or dead, and may have written anything.
struct FlightRecord {
  FlightOperation note{};
  std::uint64_t number = 0;  ///< from 1, in the order of the entries
  std::uint32_t at = 0;      ///< tenths of a second since the rank attached
};
[[nodiscard]] std::vector<FlightRecord> read_flight(FlightRing const& ring);

}  // namespace crossrank::node
