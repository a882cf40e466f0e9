#pragma once
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <crossrank/stream.hpp>

#include "lib/device/cuda/driver.hpp"

namespace crossrank::cuda {

class Kernels;

/// The state of one GPU in this process: its primary context, which the CUDA runtime and PyTorch use too, its memory
/// pool, idle events, and objects that wait for a stream. Lives until the process ends.
class DeviceState {
 public:
  DeviceState(Driver const& driver, int index);
  ~DeviceState();
  DeviceState(DeviceState const&) = delete;
  DeviceState& operator=(DeviceState const&) = delete;

  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }
  [[nodiscard]] api::Functions const& functions() const noexcept { return driver_.functions; }
  [[nodiscard]] Device device() const noexcept { return Device::cuda(index_); }
  [[nodiscard]] CUctx_st* context() const noexcept { return context_; }
  /// Returns the largest distance of two rows of a copy.
  [[nodiscard]] std::size_t max_pitch() const noexcept { return max_pitch_; }
  /// Returns whether a mapping that cannot be written can be registered.
  [[nodiscard]] bool registers_read_only() const noexcept { return registers_read_only_; }
  /// Returns the pool, or null when driver or device have none.
  [[nodiscard]] CUmemPoolHandle_st* pool() const noexcept { return pool_; }

  /// Returns the kernels, which the first call loads; the context must be current.
  [[nodiscard]] Kernels const& kernels();

  /// Records an event; the context must be current.
  [[nodiscard]] Event record(CUstream_st* stream);
  [[nodiscard]] bool query(CUevent_st* event) const;
  /// Returns whether a graph is being captured from the stream; false when the driver does not say.
  [[nodiscard]] bool is_captured(CUstream_st* stream) const noexcept;
  /// Keeps an object until the stream has passed the work that is enqueued now; the context must be current. While the
  /// stream is being captured, an event would belong to the graph: the object then stays until the capture has ended
  /// and the stream has passed the work of that time.
  void keep_alive(Stream const& stream, std::shared_ptr<void const> object);
  /// Keeps an object until a stream has passed the event.
  void keep_until(Event event, std::shared_ptr<void const> object);
  /// Drops the objects whose streams have passed; the context must be current. Never blocks.
  void drop_passed();
  /// Destroys the events that wait for their next use; the context must be current.
  void destroy_idle_events() noexcept;

 private:
  struct Held {
    Event event{};
    std::shared_ptr<void const> object{};
  };
  /// Objects in the order of one stream.
  struct HeldByStream {
    CUstream_st* stream = nullptr;
    std::deque<Held> held{};
  };
  /// An object whose stream was being captured.
  struct HeldByCapture {
    Stream stream{};
    std::shared_ptr<void const> object{};
  };

  [[nodiscard]] CUevent_st* idle_event();
  /// Lets the objects of captures that have ended wait for their streams.
  void follow_ended_captures();
  /// Makes the pool; without it, memory comes from cuMemAlloc.
  void make_pool();

  Driver const& driver_;
  int index_;
  CUctx_st* context_ = nullptr;
  std::size_t max_pitch_ = 0;
  bool registers_read_only_ = false;
  CUmemPoolHandle_st* pool_ = nullptr;
  std::once_flag kernels_loaded_{};
  std::unique_ptr<Kernels> kernels_{};
  std::mutex mutex_{};  // guards the members below
  std::vector<CUevent_st*> idle_events_{};
  std::vector<HeldByStream> held_{};
  std::vector<Held> held_until_{};
  std::vector<HeldByCapture> held_by_captures_{};
};

/// Returns the state of a GPU, which the first call makes. `UsageError` when there is no such GPU; errors of
/// `driver()`.
[[nodiscard]] DeviceState& device_state(Device device);

/// Returns the state of a GPU that is in use already, for calls that belong to no GPU in particular; else that of
/// `default_device()`. So no GPU gets a context only because it has number 0.
[[nodiscard]] DeviceState& any_device_state();

/// Lets the calling thread query events, allocate and free until the end of the scope, also while another thread
/// captures a graph. In the mode of capture that PyTorch uses, the driver otherwise refuses these calls in all threads
/// and invalidates the capture.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(api::Functions const& functions) noexcept;
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(RelaxedCaptureMode const&) = delete;
  RelaxedCaptureMode& operator=(RelaxedCaptureMode const&) = delete;

 private:
  void exchange() noexcept;

  api::Functions const& functions_;
  api::CaptureMode other_ = api::CaptureMode::relaxed;  ///< the mode to exchange the thread's mode for
};

/// Makes the context of a GPU current in the calling thread until the end of the scope, in the relaxed capture mode.
/// Restores the previous context, because the CUDA runtime takes its current device from there.
class ContextScope {
 public:
  /// Throws `BackendError` when the context cannot be made current.
  explicit ContextScope(DeviceState const& state);
  ~ContextScope();
  ContextScope(ContextScope const&) = delete;
  ContextScope& operator=(ContextScope const&) = delete;

 private:
  DeviceState const& state_;
  RelaxedCaptureMode const mode_;
  bool pushed_ = false;
};

}  // namespace crossrank::cuda
