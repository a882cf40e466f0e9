#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::queue {

/// Serializes the name of a queue to 48 bytes. `attach` checks them against shared memory.
[[nodiscard]] std::vector<std::byte> write_handle(node::RingId const& name);
/// The inverse. Throws `FormatError` for bytes that `write_handle` cannot have written.
[[nodiscard]] node::RingId read_handle(std::span<std::byte const> handle);

}  // namespace crossrank::queue
