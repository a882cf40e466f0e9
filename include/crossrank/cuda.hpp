#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/stream.hpp>

// The driver's opaque types, as cuda.h declares them. No header of CUDA is needed, and including one does no harm.
struct CUstream_st;
struct CUevent_st;

/// CUDA devices. The driver's library is opened at the first use, never before: see docs/DEVICES.md.
namespace crossrank::cuda {

using crossrank::current_stream;
using crossrank::Event;
using crossrank::Stream;
using crossrank::StreamGuard;

/// Returns the number of GPUs that `CUDA_VISIBLE_DEVICES` leaves; 0 without a driver or a GPU. Local.
[[nodiscard]] CROSSRANK_EXPORT int device_count();

/// Returns normally when CUDA can be used. `UnavailableError` otherwise, which says what was tried and what to install.
/// Local.
CROSSRANK_EXPORT void require_driver();

/// Makes a view of the caller's stream, such as PyTorch's; see `Stream::borrow`. Local, free.
[[nodiscard]] inline Stream borrow_stream(CUstream_st* native, Device device) { return Stream::borrow(device, native); }
/// Returns the driver's handle, for calls of CUDA and NCCL. Local, free.
[[nodiscard]] inline CUstream_st* native(Stream const& stream) noexcept {
  return static_cast<CUstream_st*>(stream.native());
}
/// Returns the driver's handle. Local, free.
[[nodiscard]] inline CUevent_st* native(Event const& event) noexcept {
  return static_cast<CUevent_st*>(event.native());
}

/// Work of a GPU that was captured once and can be replayed many times. Copies are the same graph.
///
/// Captures copies and fills of tensors, and collectives that NCCL carries. A replay reads and writes the same memory
/// as the captured calls: write new inputs into the same tensors, and read the results after it.
class CROSSRANK_EXPORT Graph {
 public:
  /// Makes an empty graph.
  Graph() noexcept = default;

  /// Runs `body` with `stream` as the current one and captures the work instead of doing it.
  ///
  /// Collective when `body` calls collectives: all ranks capture the same calls. Collectives compare their arguments
  /// during the capture, not during replays. Tensors that are made in `body` and those that its calls use live as long
  /// as the graph. Streams that `body` joins by events must be joined again. An exception from `body` propagates, and
  /// the capture is discarded. `UsageError` for the default stream, for a capture in a capture, for work that cannot be
  /// captured (a collective through host memory, the first collective of a group, a wait of the host, a copy with
  /// pageable memory), and when other calls have invalidated the capture; `UnavailableError` for a driver before CUDA
  /// 11.4.
  [[nodiscard]] static Graph capture(Stream const& stream, std::function<void()> const& body);

  /// Enqueues the captured work on `stream`. Does not block.
  ///
  /// Collective when collectives were captured: all ranks replay the same graphs in the same order, also relative to
  /// the other collectives of those groups. A replay counts as one call of each group: a death or a timeout ends the
  /// stream and is thrown as for calls. Throws that failure without enqueuing anything when the group has failed
  /// before, `UsageError` when it was closed, for an empty graph, a stream of another GPU or one that is being
  /// captured. Any thread; replays of one graph run one after the other.
  void replay(Stream const& stream) const;
  /// Enqueues the work on the current stream of the graph's GPU.
  void replay() const;

  /// Returns whether there is something to replay.
  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  struct State;
  std::shared_ptr<State> state_{};
};

/// The driver and its devices, for reports.
struct DriverInfo {
  std::string path{};  ///< file that was opened
  int version = 0;     ///< newest CUDA version that the driver supports, 1000 * major + 10 * minor
  /// Features that the driver lacks, with the missing function: "graphs (cuGraphInstantiateWithFlags)".
  std::vector<std::string> missing{};
};

/// A GPU, for reports.
struct DeviceInfo {
  Device device{};                          ///< its number in this process
  std::string name{};                       ///< the vendor's name
  std::string uuid{};                       ///< its identity on every rank: "GPU-" and 32 hexadecimal digits in groups
  std::string pci{};                        ///< domain, bus, device and function
  std::array<int, 2> compute_capability{};  ///< major and minor
  std::size_t total_bytes = 0;              ///< memory
  std::size_t free_bytes = 0;               ///< memory that no process holds
  bool has_memory_pools = false;            ///< whether frees are ordered by streams in the driver
  std::vector<Device> peers{};              ///< other GPUs whose memory it can access
};

/// Returns the driver that was loaded. `UnavailableError` as for `require_driver`. Local.
[[nodiscard]] CROSSRANK_EXPORT DriverInfo driver_info();
/// Returns a GPU. `UsageError` when there is no such device, `UnavailableError` without a driver. Local.
[[nodiscard]] CROSSRANK_EXPORT DeviceInfo device_info(Device device);

/// Functions that allocate device memory in place of the library's pool, such as those of PyTorch's caching allocator.
///
/// Both are called with the device's primary context current, and must be safe for any thread. `allocate` returns null
/// when there is not enough memory. Memory that `free` receives may be used again at once by work on `stream`.
struct Allocator {
  /// Allocates `bytes` on a device for a stream.
  std::function<void*(std::size_t bytes, int device, CUstream_st* stream)> allocate{};
  /// Frees them.
  std::function<void(void* data, std::size_t bytes, int device, CUstream_st* stream)> free{};
};

/// Sets the allocator of device tensors that are made from now on; an empty one restores the library's pool. Local.
/// Tensors keep the allocator that made them. Shareable memory always comes from the driver. `UsageError` when only one
/// of the two functions is set.
CROSSRANK_EXPORT void set_allocator(Allocator allocator);

/// Gives back to the driver what the library keeps of the device for reuse: memory of its pool that no tensor uses, and
/// events. Local. The pool keeps up to 1 GiB otherwise.
CROSSRANK_EXPORT void trim(Device device);

}  // namespace crossrank::cuda
