#pragma once
#include <cstdint>

#include <crossrank/spi/device_kernels.hpp>

#include "lib/device/cuda/driver_api.hpp"

namespace crossrank::cuda {

class DeviceState;

/// The kernels of the library in the context of one GPU. They stay loaded as long as the context.
class Kernels {
 public:
  /// Loads the kernels; the context must be current. Without them, when the driver refuses them, a log event of level
  /// `warning` says why.
  explicit Kernels(DeviceState const& state);

  [[nodiscard]] bool are_loaded() const noexcept {
    return convert_ != nullptr && reduce_ != nullptr && pack_ != nullptr;
  }
  /// Enqueue a kernel, which must be loaded; the context must be current. `BackendError` when the driver refuses.
  void convert(CUstream_st* stream, spi::DeviceConversion conversion) const;
  void reduce(CUstream_st* stream, spi::DeviceReduction reduction) const;
  void pack(CUstream_st* stream, spi::DevicePacking packing) const;

 private:
  [[nodiscard]] api::Result load();
  void launch(CUfunc_st* kernel, CUstream_st* stream, std::uint64_t elements, void* argument) const;

  DeviceState const& state_;
  CUfunc_st* convert_ = nullptr;
  CUfunc_st* reduce_ = nullptr;
  CUfunc_st* pack_ = nullptr;
};

}  // namespace crossrank::cuda
