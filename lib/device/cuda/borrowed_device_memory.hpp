#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {

/// Makes a storage of the caller's memory; see `DeviceProvider::borrow`.
[[nodiscard]] std::shared_ptr<spi::Storage> borrow_device_memory(DeviceState& state, void* data, std::size_t bytes,
                                                                 std::function<void(void*)> deleter);

}  // namespace crossrank::cuda
