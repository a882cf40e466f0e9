#include "tests/support/emulated_gpu/cuda/context.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "tests/support/emulated_gpu/cuda/api.hpp"
#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/device.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

constexpr std::size_t max_devices = 64;
constexpr std::size_t max_depth = 16;

std::atomic<bool> initialized{false};
std::mutex lifetime;  // orders retain, release and reset

struct ContextStack {
  std::array<Context*, max_depth> entries{};
  std::size_t depth = 0;
};
thread_local ContextStack stack;

void create(Context& context) {
  context.legacy = Stream::start(context, StreamKind::legacy, 0);
  context.alive = true;
}

/// Ends the context: its streams finish, and its memory is gone.
void destroy(Context& context) {
  if (context.sticky == CUDA_SUCCESS) drain(context);
  std::set<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard const lock(context.mutex);
    context.alive = false;
    streams.swap(context.streams);
    streams.insert(context.legacy);
    context.legacy.reset();
    context.per_thread.clear();
    context.peers.clear();
    context.retained = 0;
    context.sticky = CUDA_SUCCESS;
  }
  for (auto const& stream : streams) {
    stream->close();
    if (stream->has_handle.exchange(false)) died(Kind::stream);
  }
  memory().forget_device(context.device);
}

CUresult refuse_context() {
  Context* const context = current();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return static_cast<CUresult>(context->sticky.load());
}

void check_device(CUdevice device) {
  require(device >= 0 && device < static_cast<int>(devices().size()), CUDA_ERROR_INVALID_DEVICE);
}

}  // namespace

Context& primary(int device) {
  static auto* const contexts = [] {
    auto* const all = new std::array<Context, max_devices>;
    for (std::size_t i = 0; i < max_devices; ++i) (*all)[i].device = static_cast<int>(i);
    return all;
  }();
  return contexts->at(static_cast<std::size_t>(device));
}

Context* current() { return stack.depth == 0 ? nullptr : stack.entries[stack.depth - 1]; }

Context& context_of(CUcontext handle) {
  for (std::size_t i = 0; i < devices().size(); ++i) {
    Context& context = primary(static_cast<int>(i));
    if (handle_of(&context) == handle) {
      require(context.alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
      return context;
    }
  }
  throw Failure{CUDA_ERROR_INVALID_CONTEXT};
}

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

void fail(Context& context, CUresult result, std::string const& why) {
  int none = CUDA_SUCCESS;
  if (context.sticky.compare_exchange_strong(none, result)) report(why);
}

void drain(Context& context) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard const lock(context.mutex);
    streams.assign(context.streams.begin(), context.streams.end());
    if (context.legacy) streams.push_back(context.legacy);
  }
  for (auto const& stream : streams) stream->wait(stream->last());
  // A destroyed stream stays until its work has run.
  std::lock_guard const lock(context.mutex);
  std::erase_if(context.streams, [](auto const& stream) { return stream->closed(); });
}

void initialize() {
  claim_process();
  if (initialized.exchange(true) || options().kernels.empty()) return;
  if (::dlopen(options().kernels.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    report(std::string("EMULATED_GPU_KERNELS cannot be loaded: ") + ::dlerror());
  }
}

CUresult enter(char const* name, Needs needs) {
  if (forked()) {
    static_cast<void>(!::write(2, "emulated_gpu: CUDA is used after fork\n", 38));
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (auto const fault = log_call(name); fault != CUDA_SUCCESS) return fault;
  if (in_host_function()) {
    report(std::string(name) + " is called by a host function of a stream");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (needs == Needs::nothing) return CUDA_SUCCESS;
  if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
  return needs == Needs::context ? refuse_context() : CUDA_SUCCESS;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  return call("cuDevicePrimaryCtxRetain", Needs::init, [&] {
    check_device(device);
    std::lock_guard const lock(lifetime);
    Context& context = primary(device);
    if (context.retained++ == 0) create(context);
    out(handle) = handle_of(&context);
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return call("cuDevicePrimaryCtxRelease_v2", Needs::init, [&] {
    check_device(device);
    std::lock_guard const lock(lifetime);
    Context& context = primary(device);
    require(context.retained > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--context.retained == 0) destroy(context);
  });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return call("cuDevicePrimaryCtxReset_v2", Needs::init, [&] {
    check_device(device);
    std::lock_guard const lock(lifetime);
    if (primary(device).alive) destroy(primary(device));
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", Needs::init, [&] {
    check_device(device);
    out(flags) = primary(device).flags;
    out(active) = primary(device).alive ? 1 : 0;
  });
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return call("cuDevicePrimaryCtxSetFlags_v2", Needs::init, [&] {
    check_device(device);
    primary(device).flags = flags;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return call("cuCtxSetCurrent", Needs::init, [&] {
    Context* const context = handle == nullptr ? nullptr : &context_of(handle);
    if (stack.depth == 0) stack.depth = 1;
    stack.entries[stack.depth - 1] = context;
    if (context == nullptr) --stack.depth;
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return call("cuCtxGetCurrent", Needs::init, [&] { out(handle) = handle_of(current()); });
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return call("cuCtxPushCurrent_v2", Needs::init, [&] {
    require(stack.depth < max_depth, CUDA_ERROR_INVALID_VALUE);
    stack.entries[stack.depth] = &context_of(handle);
    ++stack.depth;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return call("cuCtxPopCurrent_v2", Needs::init, [&] {
    require(stack.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (handle != nullptr) *handle = handle_of(current());
    --stack.depth;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return call("cuCtxGetDevice", Needs::context, [&] { out(device) = current()->device; });
}

CUresult cuCtxGetFlags(unsigned* flags) {
  return call("cuCtxGetFlags", Needs::context, [&] { out(flags) = current()->flags; });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return call("cuCtxGetApiVersion", Needs::init, [&] {
    if (handle != nullptr) static_cast<void>(context_of(handle));
    out(version) = 3020;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", Needs::context, [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
  });
}

CUresult cuCtxSynchronize() {
  return call("cuCtxSynchronize", Needs::context, [&] {
    forbid_in_capture("cuCtxSynchronize");
    static_cast<void>(log_call("host_wait"));
    drain(*current());
    require(current()->sticky == CUDA_SUCCESS, static_cast<CUresult>(current()->sticky.load()));
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return call("cuCtxEnablePeerAccess", Needs::context, [&] {
    require(flags == 0, CUDA_ERROR_INVALID_VALUE);
    Context& other = context_of(peer);
    require(peers(current()->device, other.device), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    std::lock_guard const lock(current()->mutex);
    require(current()->peers.insert(other.device).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return call("cuCtxDisablePeerAccess", Needs::context, [&] {
    Context const& other = context_of(peer);
    std::lock_guard const lock(current()->mutex);
    require(current()->peers.erase(other.device) == 1, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  });
}
}
