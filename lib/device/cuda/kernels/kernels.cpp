#include "lib/device/cuda/kernels/kernels.hpp"

#include <algorithm>

#include <crossrank/device.hpp>
#include <crossrank/error.hpp>

#include "lib/core/log.hpp"
#include "lib/device/cuda/device_state.hpp"
#include "lib/device/cuda/kernels/kernel_image.hpp"

namespace crossrank::cuda {
namespace {

using api::Result;

constexpr unsigned block_threads = 256;
/// More threads than any GPU runs at a time. Each of them takes several elements of a long tensor.
constexpr std::uint64_t max_blocks = 65'536;

}  // namespace

Kernels::Kernels(DeviceState const& state) : state_(state) {
  auto const result = load();
  if (result == Result::success) return;
  convert_ = nullptr;
  reduce_ = nullptr;
  pack_ = nullptr;
  log_event(LogLevel::warning,
            "the driver does not load the library's kernels, so conversions and reductions in rank order of tensors on "
            "this GPU go through the host",
            {{"device", to_string(state.device())}, {"error", text_of(state.functions(), result)}});
}

Result Kernels::load() {
  auto const& f = state_.functions();
  if (f.cuModuleLoadData == nullptr || f.cuModuleUnload == nullptr || f.cuModuleGetFunction == nullptr ||
      f.cuLaunchKernel == nullptr) {
    return Result::not_supported;
  }
  CUmod_st* module = nullptr;
  if (auto const result = f.cuModuleLoadData(&module, kernel_image); result != Result::success) return result;
  auto result = f.cuModuleGetFunction(&convert_, module, "crossrank_convert");
  if (result == Result::success) result = f.cuModuleGetFunction(&reduce_, module, "crossrank_reduce");
  if (result == Result::success) result = f.cuModuleGetFunction(&pack_, module, "crossrank_pack");
  if (result != Result::success) log_driver_error(f, f.cuModuleUnload(module), "cuModuleUnload");
  return result;
}

void Kernels::convert(CUstream_st* stream, spi::DeviceConversion conversion) const {
  launch(convert_, stream, conversion.elements, &conversion);
}

void Kernels::reduce(CUstream_st* stream, spi::DeviceReduction reduction) const {
  launch(reduce_, stream, reduction.elements, &reduction);
}

void Kernels::pack(CUstream_st* stream, spi::DevicePacking packing) const {
  launch(pack_, stream, packing.units, &packing);
}

void Kernels::launch(CUfunc_st* kernel, CUstream_st* stream, std::uint64_t elements, void* argument) const {
  auto const blocks = std::min((elements + block_threads - 1) / block_threads, max_blocks);
  void* arguments[] = {argument};
  check(state_.driver(),
        state_.functions().cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1, block_threads, 1, 1, 0, stream,
                                          arguments, nullptr),
        "cuLaunchKernel", "run a kernel on a GPU");
}

}  // namespace crossrank::cuda
