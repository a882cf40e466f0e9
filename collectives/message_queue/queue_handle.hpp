#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "lib/node/queue/ring_endpoint.hpp"

namespace crossrank::queue {

/// A queue's name as data. 48 bytes; what it says is held against shared memory when somebody attaches.
[[nodiscard]] std::vector<std::byte> write_handle(node::RingId const& name);
/// The inverse; `FormatError` for anything that `write_handle` has not made.
[[nodiscard]] node::RingId read_handle(std::span<std::byte const> handle);

}  // namespace crossrank::queue
