#pragma once
#include <memory>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/spi/storage.hpp>

namespace crossrank::cuda {

/// Makes device memory that tensors view. It is freed after all streams that have used it. `UnavailableError` as of
/// `allocate_block`.
[[nodiscard]] std::shared_ptr<spi::Storage> allocate_device_memory(Stream const& stream,
                                                                   spi::DeviceAllocation const& request);

}  // namespace crossrank::cuda
