#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

/// Loops whose calls several threads share, one of them the calling thread. Each index is passed once, in any order.
/// All calls have ended when a loop returns. After an error no further call begins, and the error of the lowest index
/// is rethrown.
namespace crossrank::codec {

/// Calls `work(0)` to `work(count - 1)`, which move `bytes` in all. Uses the usable processors, at most 4, if that many
/// bytes are worth a thread.
void parallel_for(std::size_t count, std::uint64_t bytes, std::function<void(std::size_t)> const& work);

/// Calls `open(0)` to `open(count - 1)` in up to 16 threads, because opening a file mostly waits for a server.
void parallel_open(std::size_t count, std::function<void(std::size_t)> const& open);

}  // namespace crossrank::codec
