#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace crossrank::codec {

/// Calls `work(0)` to `work(count - 1)`, each once, in any order. Uses several threads, including the calling one, if
/// the units move enough bytes. Stops at the first error and throws it.
void parallel_for(std::size_t count, std::uint64_t bytes, std::function<void(std::size_t)> const& work);

}  // namespace crossrank::codec
