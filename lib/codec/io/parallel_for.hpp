#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace crossrank::codec {

/// Calls `work(0)` to `work(count - 1)`, each once, in any order; by several threads, the calling one among them, when
/// the units move many bytes together. The first error ends it and is thrown here.
void parallel_for(std::size_t count, std::uint64_t bytes, std::function<void(std::size_t)> const& work);

}  // namespace crossrank::codec
