#include "lib/device/cuda/driver.hpp"

#include <atomic>
#include <utility>

#include <pthread.h>

#include <crossrank/error.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/log.hpp"
#include "lib/device/function_binder.hpp"
#include "lib/device/opened_once.hpp"
#include "lib/device/vendor_library.hpp"

namespace crossrank::cuda {
namespace {

using api::Result;

// CUDA 11.0: the oldest driver whose binary interface is the one that is declared here.
constexpr int oldest_version = 11'000;
constexpr char const* load_operation = "load the NVIDIA driver";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void bind_required(FunctionBinder& to, api::Functions& f) {
  to.required("cuInit", f.cuInit);
  to.required("cuDriverGetVersion", f.cuDriverGetVersion);
  to.required("cuGetErrorName", f.cuGetErrorName);
  to.required("cuGetErrorString", f.cuGetErrorString);
  to.required("cuDeviceGetCount", f.cuDeviceGetCount);
  to.required("cuDeviceGet", f.cuDeviceGet);
  to.required("cuDeviceGetName", f.cuDeviceGetName);
  to.required("cuDeviceTotalMem_v2", f.cuDeviceTotalMem_v2);
  to.required("cuDeviceGetAttribute", f.cuDeviceGetAttribute);
  to.required("cuDeviceGetPCIBusId", f.cuDeviceGetPCIBusId);
  to.required("cuDeviceCanAccessPeer", f.cuDeviceCanAccessPeer);
  to.required("cuDevicePrimaryCtxRetain", f.cuDevicePrimaryCtxRetain);
  to.required("cuCtxPushCurrent_v2", f.cuCtxPushCurrent_v2);
  to.required("cuCtxPopCurrent_v2", f.cuCtxPopCurrent_v2);
  to.required("cuCtxGetCurrent", f.cuCtxGetCurrent);
  to.required("cuMemGetInfo_v2", f.cuMemGetInfo_v2);
  to.required("cuMemAlloc_v2", f.cuMemAlloc_v2);
  to.required("cuMemFree_v2", f.cuMemFree_v2);
  to.required("cuMemGetAddressRange_v2", f.cuMemGetAddressRange_v2);
  to.required("cuPointerGetAttribute", f.cuPointerGetAttribute);
  to.required("cuMemHostAlloc", f.cuMemHostAlloc);
  to.required("cuMemFreeHost", f.cuMemFreeHost);
  to.required("cuMemHostRegister_v2", f.cuMemHostRegister_v2);
  to.required("cuMemHostUnregister", f.cuMemHostUnregister);
  to.required("cuMemcpyHtoDAsync_v2", f.cuMemcpyHtoDAsync_v2);
  to.required("cuMemcpyDtoHAsync_v2", f.cuMemcpyDtoHAsync_v2);
  to.required("cuMemcpyDtoDAsync_v2", f.cuMemcpyDtoDAsync_v2);
  to.required("cuMemcpyPeerAsync", f.cuMemcpyPeerAsync);
  to.required("cuMemcpy2DAsync_v2", f.cuMemcpy2DAsync_v2);
  to.required("cuMemsetD8Async", f.cuMemsetD8Async);
  to.required("cuStreamCreateWithPriority", f.cuStreamCreateWithPriority);
  to.required("cuStreamDestroy_v2", f.cuStreamDestroy_v2);
  to.required("cuStreamQuery", f.cuStreamQuery);
  to.required("cuStreamWaitEvent", f.cuStreamWaitEvent);
  to.required("cuStreamIsCapturing", f.cuStreamIsCapturing);
  to.required("cuEventCreate", f.cuEventCreate);
  to.required("cuEventDestroy_v2", f.cuEventDestroy_v2);
  to.required("cuEventRecord", f.cuEventRecord);
  to.required("cuEventQuery", f.cuEventQuery);
}

void bind_optional(FunctionBinder& to, api::Functions& f) {
  constexpr auto const* pools = "memory pools";
  to.optional("cuMemPoolCreate", pools, f.cuMemPoolCreate);
  to.optional("cuMemPoolTrimTo", pools, f.cuMemPoolTrimTo);
  to.optional("cuMemPoolSetAttribute", pools, f.cuMemPoolSetAttribute);
  to.optional("cuMemAllocFromPoolAsync", pools, f.cuMemAllocFromPoolAsync);
  to.optional("cuMemFreeAsync", pools, f.cuMemFreeAsync);
  to.optional("cuThreadExchangeStreamCaptureMode", "calls during captures of other threads",
              f.cuThreadExchangeStreamCaptureMode);
  constexpr auto const* graphs = "graphs";
  to.optional("cuStreamBeginCapture_v2", graphs, f.cuStreamBeginCapture_v2);
  to.optional("cuStreamEndCapture", graphs, f.cuStreamEndCapture);
  to.optional("cuGraphInstantiateWithFlags", graphs, f.cuGraphInstantiateWithFlags);
  to.optional("cuGraphLaunch", graphs, f.cuGraphLaunch);
  to.optional("cuGraphDestroy", graphs, f.cuGraphDestroy);
  to.optional("cuGraphExecDestroy", graphs, f.cuGraphExecDestroy);
  constexpr auto const* kernels = "kernels";
  to.optional("cuModuleLoadData", kernels, f.cuModuleLoadData);
  to.optional("cuModuleUnload", kernels, f.cuModuleUnload);
  to.optional("cuModuleGetFunction", kernels, f.cuModuleGetFunction);
  to.optional("cuLaunchKernel", kernels, f.cuLaunchKernel);
  constexpr auto const* sharing = "memory that processes share";
  to.optional("cuIpcGetMemHandle", sharing, f.cuIpcGetMemHandle);
  to.optional("cuIpcOpenMemHandle_v2", sharing, f.cuIpcOpenMemHandle_v2);
  to.optional("cuIpcCloseMemHandle", sharing, f.cuIpcCloseMemHandle);
  to.optional("cuStreamWaitValue32_v2", "streams that wait for the host", f.cuStreamWaitValue32_v2);
  to.optional("cuDeviceGetUuid_v2", "identity of GPUs", f.cuDeviceGetUuid_v2);
}

/// A driver is there and cannot be used, and no log says so yet.
constinit std::atomic<bool> unreported{false};

[[noreturn]] void refuse_old(std::string const& path, std::string got, std::vector<std::string> details) {
  unreported.store(true, std::memory_order_relaxed);
  throw UnavailableError({.operation = load_operation,
                          .message = "the driver is too old",
                          .expected = "a driver for CUDA " + version_text(oldest_version) + " or later",
                          .got = std::move(got),
                          .resource = path,
                          .hint = "install a newer NVIDIA driver",
                          .details = std::move(details)});
}

/// Throws for a driver that does not start, whatever the reason: a machine without a working driver has no GPU.
[[noreturn]] void refuse_unusable(Driver const& driver, Result result, char const* function) {
  ErrorInfo info{.operation = load_operation,
                 .message = std::string(function) + " failed",
                 .resource = driver.path,
                 .system = text_of(driver.functions, result),
                 .hint = "nvidia-smi shows the state of the driver; restart the machine after an update of it"};
  if (result == Result::stub_library || result == Result::system_driver_mismatch) {
    info.message = result == Result::stub_library ? "the library is a stub for linking"
                                                  : "the library does not fit the kernel module";
    info.hint = "use the libcuda.so.1 that belongs to the loaded driver";
  }
  if (result == Result::system_not_ready)
    info.hint = "start nvidia-fabricmanager, in the version of the driver: GPUs behind NVSwitches need it";
  if (result == Result::compat_not_supported_on_device)
    info.hint =
        "this GPU does not support CUDA's forward compatibility; remove the folder cuda/compat from the library "
        "path";
  unreported.store(true, std::memory_order_relaxed);
  throw UnavailableError(std::move(info));
}

VendorLibrary open_library() {
  auto const& chosen = environment().cuda_library;
  try {
    return VendorLibrary({.chosen = chosen,
                          .setting = "CROSSRANK_CUDA_LIBRARY",
                          .name = "libcuda.so.1",
                          .what = "the NVIDIA driver",
                          .installation = "install the NVIDIA driver (Debian's package is nvidia-driver)"});
  } catch (UnavailableError const&) {
    if (!chosen.empty()) unreported.store(true, std::memory_order_relaxed);
    throw;
  }
}

Driver open() {
  auto const library = open_library();
  Driver out;
  out.path = library.path();
  FunctionBinder binder(library);
  bind_required(binder, out.functions);
  bind_optional(binder, out.functions);
  auto const& f = out.functions;
  if (f.cuDriverGetVersion != nullptr && f.cuDriverGetVersion(&out.version) == Result::success &&
      out.version < oldest_version) {
    refuse_old(out.path, "CUDA " + version_text(out.version), {});
  }
  if (!binder.absent().empty()) refuse_old(out.path, "no function " + binder.absent().front(), binder.absent());
  out.missing = binder.take_missing();
  auto const started = f.cuInit(0);
  if (started == Result::no_device) return out;
  if (started != Result::success) refuse_unusable(out, started, "cuInit");
  if (auto const counted = f.cuDeviceGetCount(&out.device_count); counted != Result::success)
    refuse_unusable(out, counted, "cuDeviceGetCount");
  return out;
}

constinit OpenedOnce<Driver> the_driver;
constinit std::atomic<bool> forked{false};

void mark_fork() { forked.store(true, std::memory_order_relaxed); }  // a child has one thread

Driver open_and_watch_forks() {
  auto driver = open();
  static_cast<void>(::pthread_atfork(nullptr, nullptr, &mark_fork));
  return driver;
}

Driver const& find_driver() {
  try {
    return the_driver.get(open_and_watch_forks);
  } catch (UnavailableError const& error) {
    // Not while the driver is being opened: the sink of the log may use devices.
    if (unreported.exchange(false, std::memory_order_relaxed))
      log_event(LogLevel::warning, "the NVIDIA driver cannot be used, so that this process has no GPU",
                {{"library", error.info().resource},
                 {"error", error.info().message + ": " + error.info().system + error.info().got},
                 {"hint", error.info().hint}});
    throw;
  }
}

}  // namespace

Driver const& driver() {
  auto const& found = find_driver();
  if (found.device_count > 0 && forked.load(std::memory_order_relaxed)) {
    throw UsageError({.operation = "CUDA",
                      .message = "this process is a child that was forked after its parent had used CUDA",
                      .hint = "fork before the first use of CUDA, or start the child with exec"});
  }
  return found;
}

Driver const* open_driver() noexcept { return forked.load(std::memory_order_relaxed) ? nullptr : the_driver.if_open(); }

}  // namespace crossrank::cuda
