#pragma once
#include <cstdint>
#include <vector>

#include <crossrank/spi/operation.hpp>

#include "lib/node/memory/control_layout.hpp"

namespace crossrank::node {

/// One operation of a rank, as its flight ring remembers it.
struct FlightOperation {
  spi::OpKind op_kind = spi::OpKind::none;
  std::uint32_t block = 0;  ///< of the group or queue
  std::uint64_t round = 0;  ///< of the group, or number of the message
  std::uint64_t bytes = 0;  ///< of this rank's part
  std::uint32_t peer = 0;   ///< of a message, as a rank of its group
};

/// Writes an entry, by stores alone: of two threads of a rank that note at the same moment one may go unremembered.
/// Messages of one queue in a row share an entry, so that a busy queue does not wash everything else away.
void write_flight(FlightRing& ring, FlightOperation const& note, std::uint32_t at) noexcept;

/// What a flight ring holds, oldest first, while its owner may be writing, dead, or anything at all.
struct FlightRecord {
  FlightOperation note{};
  std::uint64_t number = 0;  ///< from 1, counts entries
  std::uint32_t at = 0;      ///< tenths of a second since the rank attached
};
[[nodiscard]] std::vector<FlightRecord> read_flight(FlightRing const& ring);

}  // namespace crossrank::node
