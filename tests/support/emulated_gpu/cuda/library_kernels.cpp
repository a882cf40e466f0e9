// The kernels of the library, from the source that its image is compiled from, as ordinary loops over the elements.
#include <algorithm>
#include <cstdint>
#include <string>

#include <crossrank/spi/device_kernels.hpp>

#include "lib/device/kernels/convert_element.hpp"
#include "lib/device/kernels/pack_unit.hpp"
#include "lib/device/kernels/reduce_element.hpp"
#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"

namespace emulated {
namespace {

using crossrank::Dtype;
namespace spi = crossrank::spi;

std::size_t element_bytes(Dtype dtype) {
  if (dtype == Dtype::c64) return sizeof(crossrank::kernels::Complex);
  std::size_t bytes = 0;
  crossrank::kernels::with_number(dtype, [&]<Dtype one>() { bytes = sizeof(crossrank::kernels::Code<one>); });
  return bytes;
}

/// Returns the bytes behind an address. An address without the alignment of the elements is a sticky error, as on a
/// GPU.
void* elements_at(void const* address, std::uint64_t bytes, Dtype dtype, int device) {
  auto const number = reinterpret_cast<CUdeviceptr>(address);
  auto const alignment = dtype == Dtype::c64 ? alignof(crossrank::kernels::Complex) : element_bytes(dtype);
  if (alignment == 0) {
    emulated_report("a kernel of the library has a dtype that it does not know");
    throw Failure{CUDA_ERROR_LAUNCH_FAILED};
  }
  if (number % alignment != 0) {
    emulated_report("misaligned address of a kernel");
    throw Failure{CUDA_ERROR_MISALIGNED_ADDRESS};
  }
  return emulated_bytes(number, bytes, device);
}

/// Calls `body` for the elements in the order in which the threads of the grid would take them.
template <class Body>
void for_each_element(EmulatedLaunch const& launch, std::uint64_t elements, Body const& body) {
  auto const threads = std::uint64_t{launch.grid[0]} * launch.block[0];
  for (std::uint64_t thread = 0; thread < std::min(threads, elements); ++thread) {
    for (auto i = thread; i < elements; i += threads) body(i);
  }
}

void convert(EmulatedLaunch const* launch, void** arguments) {
  auto conversion = *static_cast<spi::DeviceConversion*>(arguments[0]);
  auto const at = [&](void const* address, Dtype dtype) {
    return elements_at(address, conversion.elements * element_bytes(dtype), dtype, launch->device);
  };
  conversion.from = at(conversion.from, conversion.from_dtype);
  conversion.to = at(conversion.to, conversion.to_dtype);
  for_each_element(*launch, conversion.elements,
                   [&](std::uint64_t i) { crossrank::kernels::convert_element(conversion, i); });
}

void reduce(EmulatedLaunch const* launch, void** arguments) {
  auto reduction = *static_cast<spi::DeviceReduction*>(arguments[0]);
  auto const bytes = reduction.elements * element_bytes(reduction.dtype);
  reduction.inputs = elements_at(reduction.inputs, (reduction.ranks - 1) * reduction.stride_bytes + bytes,
                                 reduction.dtype, launch->device);
  reduction.to = elements_at(reduction.to, bytes, reduction.dtype, launch->device);
  for_each_element(*launch, reduction.elements,
                   [&](std::uint64_t i) { crossrank::kernels::reduce_element(reduction, i); });
}

void pack(EmulatedLaunch const* launch, void** arguments) {
  auto packing = *static_cast<spi::DevicePacking*>(arguments[0]);
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::uint64_t units = 1;
  auto all = reinterpret_cast<CUdeviceptr>(packing.to) | reinterpret_cast<CUdeviceptr>(packing.from);
  for (std::uint32_t dim = 0; dim < packing.dims; ++dim) {
    auto const reach = static_cast<std::int64_t>(packing.lengths[dim] - 1) * packing.strides[dim];
    (reach < 0 ? first : last) += reach;
    units *= packing.lengths[dim];
    all |= static_cast<CUdeviceptr>(packing.strides[dim]);
  }
  if (units != packing.units) {
    emulated_report("a kernel of the library copies another number of units than its dimensions have");
    throw Failure{CUDA_ERROR_LAUNCH_FAILED};
  }
  if (all % packing.unit_bytes != 0) {
    emulated_report("misaligned address of a kernel");
    throw Failure{CUDA_ERROR_MISALIGNED_ADDRESS};
  }
  auto const from = reinterpret_cast<CUdeviceptr>(packing.from) + static_cast<CUdeviceptr>(first);
  auto const bytes = static_cast<std::uint64_t>(last - first) + packing.unit_bytes;
  packing.from = static_cast<std::byte*>(emulated_bytes(from, bytes, launch->device)) - first;
  packing.to =
      emulated_bytes(reinterpret_cast<CUdeviceptr>(packing.to), packing.units * packing.unit_bytes, launch->device);
  for_each_element(*launch, packing.units, [&](std::uint64_t i) { crossrank::kernels::pack_unit(packing, i); });
}

[[gnu::constructor]] void register_kernels() {
  std::size_t const conversion_bytes = sizeof(spi::DeviceConversion);
  std::size_t const reduction_bytes = sizeof(spi::DeviceReduction);
  emulated_register_kernel("crossrank_convert", &convert, &conversion_bytes, 1);
  std::size_t const packing_bytes = sizeof(spi::DevicePacking);
  emulated_register_kernel("crossrank_reduce", &reduce, &reduction_bytes, 1);
  emulated_register_kernel("crossrank_pack", &pack, &packing_bytes, 1);
}

}  // namespace
}  // namespace emulated
