// The kernels that the library runs on NVIDIA's GPUs. `generate` turns this file into kernels.ptx.
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <crossrank/spi/device_kernels.hpp>

// The functions of these headers, and no others, compile for both sides.
#pragma clang force_cuda_host_device begin
#include "lib/device/kernels/convert_element.hpp"
#include "lib/device/kernels/pack_unit.hpp"
#include "lib/device/kernels/reduce_element.hpp"
#pragma clang force_cuda_host_device end

namespace {

/// Calls `body` for the elements of this thread. Threads of a warp take elements that follow each other in memory.
template <class Body>
__attribute__((device)) void for_each_element(unsigned long long elements, Body body) {
  auto const block_threads = static_cast<unsigned long long>(__nvvm_read_ptx_sreg_ntid_x());
  auto const threads = block_threads * static_cast<unsigned>(__nvvm_read_ptx_sreg_nctaid_x());
  auto i = block_threads * static_cast<unsigned>(__nvvm_read_ptx_sreg_ctaid_x()) +
           static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_x());
  for (; i < elements; i += threads) body(i);
}

}  // namespace

extern "C" __attribute__((global)) void crossrank_convert(crossrank::spi::DeviceConversion conversion) {
  for_each_element(conversion.elements, [&](auto i) { crossrank::kernels::convert_element(conversion, i); });
}

extern "C" __attribute__((global)) void crossrank_reduce(crossrank::spi::DeviceReduction reduction) {
  for_each_element(reduction.elements, [&](auto i) { crossrank::kernels::reduce_element(reduction, i); });
}

extern "C" __attribute__((global)) void crossrank_pack(crossrank::spi::DevicePacking packing) {
  for_each_element(packing.units, [&](auto i) { crossrank::kernels::pack_unit(packing, i); });
}
