#pragma once
#include <cstdint>

#include <crossrank/spi/device_kernels.hpp>

namespace crossrank::kernels {

template <class Unit>
[[gnu::always_inline]] inline void copy_unit(void* to, std::uint64_t i, void const* from, std::int64_t offset) {
  auto const* const bytes = static_cast<unsigned char const*>(from) + offset;
  static_cast<Unit*>(to)[i] = *static_cast<Unit const*>(static_cast<void const*>(bytes));
}

/// Copies unit number `i`: the body of the kernel.
[[gnu::always_inline]] inline void pack_unit(spi::DevicePacking const& packing, std::uint64_t i) {
  std::int64_t offset = 0;
  auto left = i;
  for (std::uint32_t dim = packing.dims; dim-- > 0;) {
    offset += static_cast<std::int64_t>(left % packing.lengths[dim]) * packing.strides[dim];
    left /= packing.lengths[dim];
  }
  switch (packing.unit_bytes) {
    case 8: return copy_unit<std::uint64_t>(packing.to, i, packing.from, offset);
    case 4: return copy_unit<std::uint32_t>(packing.to, i, packing.from, offset);
    case 2: return copy_unit<std::uint16_t>(packing.to, i, packing.from, offset);
    default: return copy_unit<std::uint8_t>(packing.to, i, packing.from, offset);
  }
}

}  // namespace crossrank::kernels
