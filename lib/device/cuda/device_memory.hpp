#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {

/// Allocates memory of a GPU: from the plugged allocator, else the pool, else, or when it is to be shareable, with
/// cuMemAlloc. `UnavailableError` when there is not enough, also after unused memory was given back.
[[nodiscard]] std::shared_ptr<spi::Storage> allocate_device_memory(Stream const& stream,
                                                                   spi::DeviceAllocation const& request);

/// Makes a storage of the caller's memory; see `DeviceProvider::borrow`.
[[nodiscard]] std::shared_ptr<spi::Storage> borrow_device_memory(DeviceState& state, void* data, std::size_t bytes,
                                                                 std::function<void(void*)> deleter);

}  // namespace crossrank::cuda
