#include "collectives/nccl/registered_memory.hpp"

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "collectives/nccl/nccl_library.hpp"
#include "lib/core/log.hpp"
#include "lib/device/cuda/device_state.hpp"

namespace crossrank::nccl {
namespace {

void free_with_nccl(Device device, void* data) noexcept {
  if (cuda::open_driver() == nullptr) return;
  try {
    cuda::ContextScope const scope(cuda::device_state(device));
    if (nccl_library().functions.ncclMemFree(data) != api::Result::success)
      log_event(LogLevel::warning, "NCCL does not free a buffer", {{"device", to_string(device)}});
  } catch (Error const&) {  // the driver has shut down
  }
}

}  // namespace

std::shared_ptr<spi::Storage> allocate_with_nccl(Device device, std::size_t bytes) {
  auto const& f = nccl_library().functions;
  if (f.ncclMemAlloc == nullptr || f.ncclMemFree == nullptr || bytes == 0) return nullptr;
  cuda::ContextScope const scope(cuda::device_state(device));
  void* data = nullptr;
  if (auto const result = f.ncclMemAlloc(&data, bytes); result != api::Result::success)
    throw_nccl_error(f, result, "ncclMemAlloc", "allocate a communication buffer");
  try {
    return spi::device_provider(device.kind).borrow(device, data, bytes, [device](void* at) {
      free_with_nccl(device, at);
    });
  } catch (...) {
    free_with_nccl(device, data);
    throw;
  }
}

}  // namespace crossrank::nccl
