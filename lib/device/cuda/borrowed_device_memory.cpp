#include "lib/device/cuda/borrowed_device_memory.hpp"

#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/device/borrowed_memory.hpp"
#include "lib/device/holders.hpp"

namespace crossrank::cuda {
namespace {

using api::DevicePointer;
using api::PointerAttribute;
using api::Result;

/// Device memory of the caller.
class BorrowedDeviceStorage final : public spi::Storage {
 public:
  BorrowedDeviceStorage(Device device, void* data, std::size_t bytes, std::function<void(void*)> deleter)
      : device_(device), memory_(data, std::move(deleter)), bytes_(bytes) {}
  [[nodiscard]] std::byte* data() noexcept override { return memory_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Device device() const noexcept override { return device_; }
  [[nodiscard]] std::string frozen_by() const override { return holders_.describe(); }
  [[nodiscard]] bool hold(std::function<std::string()> who) override {
    holders_.add(std::move(who));
    return true;
  }

 private:
  Device device_;
  Holders holders_{};
  BorrowedMemory memory_;
  std::size_t bytes_;
};

[[noreturn]] void refuse_blob(Device device, char const* message, std::string got, char const* hint) {
  throw UsageError({.operation = "Tensor.from_blob",
                    .message = message,
                    .expected = "memory of " + to_string(device),
                    .got = std::move(got),
                    .hint = hint});
}

/// Returns whether the address is memory of cuMemMap, and neither of cuMemAlloc nor of a pool.
bool is_mapped(DeviceState const& state, DevicePointer at) {
  auto const& f = state.functions();
  unsigned is_allocation = 0;
  CUmemPoolHandle_st* pool = nullptr;
  if (f.cuPointerGetAttribute(&is_allocation, PointerAttribute::is_legacy_ipc_capable, at) != Result::success)
    return false;
  // A driver that does not know the attribute has no pools.
  static_cast<void>(f.cuPointerGetAttribute(&pool, PointerAttribute::pool_handle, at));
  return is_allocation == 0 && pool == nullptr;
}

/// Returns how many bytes are left from `at` to the end of the allocation. Mapped memory may continue in the allocation
/// at the next address, as PyTorch's expandable segments do: it is followed until `wanted` bytes are found.
std::size_t bytes_left(DeviceState const& state, DevicePointer at, std::size_t wanted) {
  auto const& f = state.functions();
  DevicePointer base = 0;
  std::size_t size = 0;
  check(state.driver(), f.cuMemGetAddressRange_v2(&base, &size, at), "cuMemGetAddressRange", "Tensor.from_blob");
  auto known = size - (at - base);
  while (known < wanted && is_mapped(state, base)) {
    auto const next = at + known;
    int ordinal = -1;
    if (f.cuMemGetAddressRange_v2(&base, &size, next) != Result::success || base != next || size == 0) break;
    if (f.cuPointerGetAttribute(&ordinal, PointerAttribute::device_ordinal, next) != Result::success) break;
    if (ordinal != state.device().index || !is_mapped(state, next)) break;
    known += size;
  }
  return known;
}

void require_device_memory(DeviceState const& state, void* data, std::size_t bytes) {
  auto const& f = state.functions();
  auto const at = api::device_address(data);
  unsigned type = 0;
  unsigned managed = 0;
  int ordinal = 0;
  if (f.cuPointerGetAttribute(&type, PointerAttribute::memory_type, at) != Result::success)
    refuse_blob(state.device(), "the pointer is not known to CUDA", "host memory",
                "omit the device for host memory, or copy it with to(device)");
  static_cast<void>(f.cuPointerGetAttribute(&managed, PointerAttribute::is_managed, at));
  if (type != static_cast<unsigned>(api::MemoryType::device) && managed == 0)
    refuse_blob(state.device(), "the pointer is pinned host memory", "host memory",
                "omit the device for host memory, or copy it with to(device)");
  if (managed == 0 && f.cuPointerGetAttribute(&ordinal, PointerAttribute::device_ordinal, at) == Result::success &&
      ordinal != state.device().index) {
    refuse_blob(state.device(), "the memory is on another GPU", to_string(Device::cuda(ordinal)),
                "pass the device that holds the memory");
  }
  auto const left = bytes_left(state, at, bytes);
  if (bytes > left)
    refuse_blob(state.device(), "the tensor is longer than the memory",
                std::to_string(left) + " bytes up to the end of the allocation, " + std::to_string(bytes) + " needed",
                "check shape and dtype");
}

}  // namespace

std::shared_ptr<spi::Storage> borrow_device_memory(DeviceState& state, void* data, std::size_t bytes,
                                                   std::function<void(void*)> deleter) {
  if (bytes > 0) {
    ContextScope const scope(state);
    require_device_memory(state, data, bytes);
  }
  return std::make_shared<BorrowedDeviceStorage>(state.device(), data, bytes, std::move(deleter));
}

}  // namespace crossrank::cuda
