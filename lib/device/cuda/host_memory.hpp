#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include <crossrank/spi/device_provider.hpp>

namespace crossrank::cuda {

/// Allocates page-locked host memory; see `DeviceProvider::allocate_pinned`.
[[nodiscard]] std::shared_ptr<spi::Storage> allocate_pinned_memory(std::size_t bytes);

/// Page-locks existing host memory; see `DeviceProvider::register_host`.
[[nodiscard]] std::shared_ptr<void> register_host_memory(std::span<std::byte const> bytes,
                                                         spi::DeviceProvider::HostAccess access);

}  // namespace crossrank::cuda
