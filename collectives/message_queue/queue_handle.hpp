#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "lib/node/ring_end.hpp"

namespace crossrank::queue {

/// A queue's name as data. 48 bytes; what it says is held against shared memory when somebody attaches.
[[nodiscard]] std::vector<std::byte> write_handle(node::RingName const& name);
/// The inverse; `FormatError` for anything that `write_handle` has not made.
[[nodiscard]] node::RingName read_handle(std::span<std::byte const> handle);

}  // namespace crossrank::queue
