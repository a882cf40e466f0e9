#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include <crossrank/device.hpp>
#include <crossrank/export.hpp>

namespace crossrank {

/// A point in the work of a stream. Other streams and the host can wait for it. Copies are the same event.
///
/// A default-constructed event has passed.
class CROSSRANK_EXPORT Event {
 public:
  /// Makes an event that has passed.
  Event() noexcept = default;
  /// For providers: takes over the vendor's event.
  Event(Device device, std::shared_ptr<void> handle) noexcept : device_(device), handle_(std::move(handle)) {}

  /// Returns the device of the stream that recorded the event.
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// Returns the vendor's event, a `CUevent` of CUDA; null for an event that has passed.
  [[nodiscard]] void* native() const noexcept { return handle_.get(); }
  /// Returns whether the work before the event has completed. Never blocks. `BackendError` when work on the device has
  /// failed.
  [[nodiscard]] bool query() const;
  /// Blocks the host until the stream has passed the event.
  ///
  /// `TimeoutError` when that takes longer than `timeout`; 0 is `CROSSRANK_TIMEOUT`, else five minutes. `BackendError`
  /// when work on the device has failed.
  void synchronize(std::chrono::milliseconds timeout = {}) const;

 private:
  Device device_{};
  std::shared_ptr<void> handle_{};
};

/// Options of a new stream.
struct StreamOptions {
  int priority = 0;  ///< a lower number is more urgent; the device limits it to its range
};

/// A queue of work of one device, in order. Copies are the same stream.
///
/// A default-constructed stream is the CPU's: all its work has been done. All functions are local, and may be called
/// from any thread.
class CROSSRANK_EXPORT Stream {
 public:
  /// Makes the stream of the CPU.
  Stream() noexcept = default;
  /// For providers: takes over the vendor's stream; null is the device's default stream.
  Stream(Device device, std::shared_ptr<void> handle) noexcept : device_(device), handle_(std::move(handle)) {}

  /// Makes a stream that does not wait for the device's default stream. It ends with its last copy, after its work.
  /// `UnavailableError` without that device.
  [[nodiscard]] static Stream create(Device device, StreamOptions const& options = {});
  /// Makes a view of the caller's stream, such as PyTorch's: `native` is a `CUstream` of the device's primary context,
  /// or null for the default stream. It must outlive all views, and all tensors that were allocated or used on it.
  /// `UsageError` for CU_STREAM_PER_THREAD, which is another stream in each thread.
  [[nodiscard]] static Stream borrow(Device device, void* native);

  /// Returns the device.
  [[nodiscard]] Device device() const noexcept { return device_; }
  /// Returns the vendor's stream, a `CUstream` of CUDA; null is the default stream.
  [[nodiscard]] void* native() const noexcept { return handle_.get(); }
  /// Marks the end of the work that is enqueued now. Enqueues; does not block.
  [[nodiscard]] Event record() const;
  /// Makes all later work of the stream wait for `event`, which may be of another device. Enqueues; does not block.
  void wait(Event const& event) const;
  /// Returns whether all work that was enqueued has completed. Never blocks. Errors as for `Event::query`.
  [[nodiscard]] bool query() const;
  /// Blocks the host until all work that is enqueued now has ended; errors as for `Event::synchronize`.
  void synchronize(std::chrono::milliseconds timeout = {}) const;
  /// Returns whether a graph is being captured from the stream. `record` and `wait` are then captured too; `query` and
  /// `synchronize` throw `UsageError`.
  [[nodiscard]] bool is_capturing() const;
  /// Returns whether both are the same stream.
  bool operator==(Stream const& other) const noexcept { return device_ == other.device_ && native() == other.native(); }

 private:
  Device device_{};
  std::shared_ptr<void> handle_{};
};

/// Returns the stream on which operations of this thread enqueue their work for `device`.
///
/// That is the innermost `StreamGuard` of this thread and device, else the device's default stream. Local, free.
[[nodiscard]] CROSSRANK_EXPORT Stream current_stream(Device device);

/// Makes a stream the current one of its device, in this thread, until the end of the scope. Guards nest, and may end
/// in any order: the current stream is that of the last guard that has begun and not ended.
class CROSSRANK_EXPORT StreamGuard {
 public:
  /// Sets the current stream of `stream.device()`.
  explicit StreamGuard(Stream stream);
  /// Restores the previous one.
  ~StreamGuard();
  StreamGuard(StreamGuard const&) = delete;
  StreamGuard& operator=(StreamGuard const&) = delete;
};

}  // namespace crossrank
