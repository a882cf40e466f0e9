#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include <crossrank/spi/device_provider.hpp>
#include <crossrank/stream.hpp>

#include "lib/device/cuda/device_state.hpp"

namespace crossrank::cuda {

/// Memory of one allocation. Its end frees it.
class MemoryBlock {
 public:
  MemoryBlock(DeviceState& state, Stream stream, void* data, std::size_t bytes)
      : state_(state), stream_(std::move(stream)), data_(data), bytes_(bytes) {}
  virtual ~MemoryBlock() = default;
  MemoryBlock(MemoryBlock const&) = delete;
  MemoryBlock& operator=(MemoryBlock const&) = delete;

  [[nodiscard]] DeviceState& state() const noexcept { return state_; }
  [[nodiscard]] Stream const& stream() const noexcept { return stream_; }
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns whether the memory is freed in the order of the stream, so that the host need not wait before.
  [[nodiscard]] virtual bool frees_in_order() const noexcept { return true; }

 private:
  DeviceState& state_;
  Stream stream_;
  void* data_;
  std::size_t bytes_;
};

/// Allocates from the plugged allocator, else the pool, else, or when the memory is to be shareable, with cuMemAlloc.
/// `UnavailableError` when there is not enough, also after unused memory was given back.
[[nodiscard]] std::unique_ptr<MemoryBlock> allocate_block(DeviceState& state, Stream const& stream,
                                                          spi::DeviceAllocation const& request);

}  // namespace crossrank::cuda
