#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include <crossrank/spi/device_provider.hpp>

#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {

/// Allocates page-locked host memory; see `DeviceProvider::allocate_pinned`.
[[nodiscard]] std::shared_ptr<spi::Storage> allocate_pinned_memory(std::size_t bytes);

/// Page-locks existing host memory; see `DeviceProvider::register_host`.
[[nodiscard]] std::shared_ptr<void> register_host_memory(std::span<std::byte const> bytes,
                                                         spi::DeviceProvider::HostAccess access);

/// Returns whether the driver knows host memory; see `DeviceProvider::is_page_locked`.
[[nodiscard]] bool is_page_locked_memory(DeviceState const& state, std::byte const* data);

}  // namespace crossrank::cuda
