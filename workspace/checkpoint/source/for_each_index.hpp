#pragma once
#include <cstddef>
#include <functional>

namespace crossrank::checkpoint {

/// Calls `body` for each index below `count`, in the calling thread and up to 15 more. Used to open files, where a
/// thread mostly waits for a server.
///
/// Returns when all calls have ended. After an error, no further call begins; rethrows the error of the lowest index.
void for_each_index(std::size_t count, std::function<void(std::size_t index)> const& body);

}  // namespace crossrank::checkpoint
