#pragma once
#include <cstddef>
#include <memory>

#include <crossrank/device.hpp>
#include <crossrank/spi/storage.hpp>

namespace crossrank::nccl {

/// Allocates memory of a GPU with NCCL's own allocator, so that a communicator can use it without copies of its own.
/// Null for an NCCL before 2.19. Freed with the last view: the caller's work on it must have ended by then.
[[nodiscard]] std::shared_ptr<spi::Storage> allocate_with_nccl(Device device, std::size_t bytes);

}  // namespace crossrank::nccl
