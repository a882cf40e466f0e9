#pragma once
#include <memory>
#include <optional>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/device/cuda/device_state.hpp"

/// Memory of a GPU that several processes of a host use, by handles of cuIpcGetMemHandle.
namespace crossrank::cuda {

/// Describes memory for other processes; see `DeviceProvider::share`.
[[nodiscard]] std::optional<spi::SharedDeviceMemory> share_device_memory(DeviceState& state, std::byte const* data,
                                                                         std::size_t bytes);

/// Opens memory of another process; see `DeviceProvider::open_shared`. A process opens each allocation once, because
/// drivers before CUDA 12 refuse the second time.
[[nodiscard]] std::shared_ptr<spi::Storage> open_shared_device_memory(spi::SharedDeviceMemory const& shared,
                                                                      std::shared_ptr<void const> lease);

}  // namespace crossrank::cuda
