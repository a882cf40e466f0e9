#pragma once
#include <cstdint>

#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"
#include "lib/node/inspect/device_flight.hpp"

namespace crossrank::algorithms {

/// Describes a call on device tensors for the flight recorder.
[[nodiscard]] node::DeviceFlightOperation recorded_call(Call const& call, node::DevicePath path, Stream const& stream,
                                                        std::uint64_t sequence);

}  // namespace crossrank::algorithms
