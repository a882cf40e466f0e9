#pragma once
#include <atomic>
#include <memory>
#include <string>

#include <dlfcn.h>

/// The emulated CUDA driver, as a test sees it. The test defines CROSSRANK_TEST_CUDA as its path.
namespace crossrank::test {

/// Returns a function of the emulated driver: one of the driver's, or one of
/// tests/support/emulated_gpu/cuda/emulated_gpu.hpp.
template <class Function>
Function* emulated(char const* name) {
  auto* const library = ::dlopen(CROSSRANK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// Returns how often this process has called a function of the driver since `reset_calls`.
inline unsigned long long calls(char const* name) {
  return emulated<unsigned long long(char const*)>("emulated_count")(name);
}
inline void reset_calls() { emulated<void()>("emulated_reset_counts")(); }
/// Returns how many objects of a kind are alive: "allocation", "host", "stream", "event".
inline unsigned long long live(char const* kind) {
  return emulated<unsigned long long(char const*)>("emulated_live")(kind);
}
/// Returns how many misuses the driver has reported.
inline unsigned long long reports() { return emulated<unsigned long long()>("emulated_report_count")(); }
/// Lets the nth call of a function from now on fail. A negative code is a signal that ends the process at that call or
/// event.
inline void fail_call(char const* name, unsigned long long nth, int code) {
  emulated<void(char const*, unsigned long long, int)>("emulated_fail_call")(name, nth, code);
}

/// Makes the primary context of a GPU current in this thread, for calls of the driver.
inline void use_gpu_context(int gpu = 0) {
  void* context = nullptr;
  emulated<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, gpu);
  emulated<int(void*)>("cuCtxSetCurrent")(context);
}

/// Holds back the work that a stream of a GPU gets from now on.
class HeldStream {
 public:
  explicit HeldStream(void* stream, int gpu = 0) {
    use_gpu_context(gpu);
    auto const wait = [](void* data) {
      std::unique_ptr<std::shared_ptr<std::atomic<bool>>> const released(
          static_cast<std::shared_ptr<std::atomic<bool>>*>(data));
      (*released)->wait(false);
    };
    emulated<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc")(
        stream, wait, std::make_unique<std::shared_ptr<std::atomic<bool>>>(released_).release());
  }
  ~HeldStream() { release(); }
  HeldStream(HeldStream const&) = delete;
  HeldStream& operator=(HeldStream const&) = delete;

  /// Lets the work begin. Any thread.
  void release() {
    *released_ = true;
    released_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
};

/// A capture of a stream, until the end of the scope; none for null.
class Capture {
 public:
  explicit Capture(void* stream) : stream_(stream) {
    if (stream == nullptr) return;
    use_gpu_context();
    emulated<int(void*, int)>("cuStreamBeginCapture_v2")(stream, 0);
  }
  ~Capture() { static_cast<void>(end()); }
  Capture(Capture const&) = delete;
  Capture& operator=(Capture const&) = delete;

  /// Ends the capture. Returns whether it was still valid.
  bool end() {
    if (stream_ == nullptr) return true;
    void* graph = nullptr;
    auto const result = emulated<int(void*, void**)>("cuStreamEndCapture")(stream_, &graph);
    stream_ = nullptr;
    if (graph != nullptr) emulated<int(void*)>("cuGraphDestroy")(graph);
    return result == 0;
  }

 private:
  void* stream_;
};

}  // namespace crossrank::test
