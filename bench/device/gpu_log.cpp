#include "bench/device/gpu_log.hpp"

#include <cstdlib>
#include <initializer_list>

#include <dlfcn.h>

#include "bench/harness/harness.hpp"

namespace crossrank::bench {
namespace {

template <class Function>
Function* find(void* library, char const* name) {
  auto* const found = ::dlsym(library, name);
  require(found != nullptr, "CROSSRANK_CUDA_LIBRARY does not name the emulated driver: it has no ", name);
  return reinterpret_cast<Function*>(found);
}

void* open_driver() {
  auto const* const path = std::getenv("CROSSRANK_CUDA_LIBRARY");
  require(path != nullptr, "CROSSRANK_CUDA_LIBRARY must name the emulated driver");
  auto* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "cannot open ", path);
  return library;
}

}  // namespace

GpuLog::GpuLog() {
  auto* const library = open_driver();
  count_ = find<unsigned long long(char const*)>(library, "emulated_count");
  amount_ = find<unsigned long long(char const*)>(library, "emulated_amount");
  reset_ = find<void()>(library, "emulated_reset_counts");
}

double GpuLog::sum(std::initializer_list<char const*> names) const {
  double all = 0.0;
  for (auto const* name : names) all += static_cast<double>(count_(name));
  return all;
}

std::map<std::string, double> GpuLog::counts() const {
  auto const events = sum({"copy", "pageable_copy", "host_wait", "polled_wait", "nccl_kernel"});
  // The last two are from the thread that watches the GPUs, ten times a second.
  auto const queries =
      sum({"cuEventQuery", "cuStreamQuery", "cuStreamIsCapturing", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
           "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode", "ncclCommGetAsyncError", "nccl_async_error"});
  return {{"calls", static_cast<double>(count_(nullptr)) - events - queries},
          {"kernels", sum({"nccl_kernel"})},
          {"copies", sum({"copy"})},
          {"copied_bytes", static_cast<double>(amount_("copied_bytes"))},
          {"host_waits", sum({"host_wait", "polled_wait"})},
          {"made", sum({"cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemHostAlloc",
                        "cuMemHostRegister_v2", "cuStreamCreate", "cuStreamCreateWithPriority"})}};
}

}  // namespace crossrank::bench
