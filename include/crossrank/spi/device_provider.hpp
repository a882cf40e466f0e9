#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/spi/device_kernels.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

namespace crossrank::spi {

/// How device memory is allocated.
struct DeviceAllocation {
  std::size_t bytes = 0;   ///< 0 allocates nothing
  bool shareable = false;  ///< whether other processes can open the memory
};

/// A strided copy. At least one side is device memory.
struct DeviceCopy {
  std::byte* to = nullptr;          ///< first byte that is written
  Device to_device{};               ///< where that byte is
  std::byte const* from = nullptr;  ///< first byte that is read
  Device from_device{};             ///< where that byte is
  std::size_t run_bytes = 0;        ///< length of a run
  std::size_t runs = 1;             ///< number of runs
  std::size_t to_stride = 0;        ///< bytes from one run to the next, if there are several
  std::size_t from_stride = 0;      ///< bytes from one run to the next, if there are several
};

/// A handle by which other processes of the host open device memory of this one.
struct SharedDeviceMemory {
  std::array<std::byte, 104> handle{};    ///< the vendor's
  std::uint64_t bytes = 0;                ///< length
  Device::Kind kind = Device::Kind::cpu;  ///< kind of the device, whose provider opens the memory
  std::array<std::byte, 7> unused{};      ///< zero
};

/// The interface that a vendor's devices implement: memory, streams, copies and events of one kind of device.
///
/// `device_provider` finds it. Each vendor implements one provider. A member that enqueues work returns at once;
/// the work runs in the order of the stream. Any thread may call any member. `UnavailableError` without a driver,
/// device or memory; `UsageError` for a device number that does not exist; `BackendError` when the vendor's library
/// fails, also with the error of work that was enqueued earlier. `allocate`, `copy`, `fill`, `convert`, `reduce`,
/// `pack` and `keep_alive` throw `UsageError` while another library captures a graph from the stream.
class CROSSRANK_EXPORT DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;

  /// Returns the number of devices; 0 without a driver or a device.
  [[nodiscard]] virtual int device_count() = 0;

  /// Allocates device memory for use on `stream` and, after an event, on others. Its contents are undetermined.
  ///
  /// The storage frees it in the order of `stream`, after all streams that `used_on` names. While `stream` is being
  /// captured, the memory belongs to the graph.
  [[nodiscard]] virtual std::shared_ptr<Storage> allocate(Stream const& stream, DeviceAllocation const& request) = 0;
  /// Makes a storage of the caller's device memory. `deleter(data)` runs when the last view is gone. `UsageError` when
  /// `data` is not memory of that device, or when there are fewer bytes.
  [[nodiscard]] virtual std::shared_ptr<Storage> borrow(Device device, void* data, std::size_t bytes,
                                                        std::function<void(void*)> deleter) = 0;
  /// Allocates page-locked host memory, which all devices copy without staging. Costs a system call, so keep it.
  [[nodiscard]] virtual std::shared_ptr<Storage> allocate_pinned(std::size_t bytes) = 0;
  /// Says whether a mapping allows writes.
  enum class HostAccess : std::uint8_t { read_write, read_only };
  /// Page-locks existing host memory, such as a shared mapping, for all devices, until the result is destroyed.
  ///
  /// Costs 0.2 to 0.4 ms per MiB, so do it once per mapping, not per call. Destroy the result before you unmap the
  /// memory, and after the streams that copy it have passed. `access` says what the mapping allows.
  [[nodiscard]] virtual std::shared_ptr<void> register_host(std::span<std::byte const> bytes, HostAccess access) = 0;

  /// Returns whether host memory is page-locked, also by another library, so that copies of a stream of `device`
  /// continue after the call.
  [[nodiscard]] virtual bool is_page_locked(Device device, std::byte const* data) = 0;

  /// Describes device memory for other processes. Returns nothing when they cannot open it, such as memory of a pool.
  [[nodiscard]] virtual std::optional<SharedDeviceMemory> share(Device device, std::byte const* data,
                                                                std::size_t bytes) = 0;
  /// Makes a storage of memory that `share` has described, also in this process. Its owner must keep the memory until
  /// `lease` has ended: after the last view, and all streams that `used_on` names. `UnavailableError` when this process
  /// does not see the device.
  [[nodiscard]] virtual std::shared_ptr<Storage> open_shared(SharedDeviceMemory const& shared,
                                                             std::shared_ptr<void const> lease) = 0;

  /// Makes a stream.
  [[nodiscard]] virtual Stream create_stream(Device device, StreamOptions const& options) = 0;
  /// Records an event after the work that is enqueued now.
  [[nodiscard]] virtual Event record(Stream const& stream) = 0;
  /// Lets later work of the stream wait for the event.
  virtual void wait(Stream const& stream, Event const& event) = 0;
  /// Returns whether streams of the device can wait for a word that the host writes.
  [[nodiscard]] virtual bool can_wait_for_host(Device device) = 0;
  /// Lets later work of the stream wait until the word has reached `value`: until `*word - value`, modulo 2^32, is less
  /// than 2^31. The host writes the word by atomic stores. It is in memory of `allocate_pinned`, which must stay until
  /// the stream has passed. Not while a graph is being captured from the stream; `can_wait_for_host` must be true.
  virtual void wait_for_host(Stream const& stream, std::uint32_t const* word, std::uint32_t value) = 0;
  /// Returns whether the work before the event has completed.
  [[nodiscard]] virtual bool query(Event const& event) = 0;
  /// Returns whether all work of the stream has ended.
  [[nodiscard]] virtual bool query(Stream const& stream) = 0;
  /// Returns whether a graph is being captured from the stream.
  [[nodiscard]] virtual bool is_capturing(Stream const& stream) = 0;

  /// Enqueues a copy. With pageable host memory the call returns when the bytes have been read (from the host) or
  /// written (to the host); with page-locked memory it returns at once. Strided copies are on one device, or between it
  /// and the host.
  virtual void copy(Stream const& stream, DeviceCopy const& copy) = 0;
  /// Enqueues a fill of `bytes` bytes of device memory with `value`.
  virtual void fill(Stream const& stream, std::byte* at, std::byte value, std::size_t bytes) = 0;
  /// Returns whether the device runs the kernels of `convert`, `reduce` and `pack`. The first call loads them, which
  /// may take a second the first time on a machine; a log event of level `warning` says why they cannot be loaded.
  [[nodiscard]] virtual bool has_kernels(Device device) = 0;
  /// Enqueues a conversion of elements; `has_kernels` must be true.
  virtual void convert(Stream const& stream, DeviceConversion const& conversion) = 0;
  /// Enqueues a reduction in rank order; `has_kernels` must be true.
  virtual void reduce(Stream const& stream, DeviceReduction const& reduction) = 0;
  /// Enqueues a copy of elements with any strides; `has_kernels` must be true.
  virtual void pack(Stream const& stream, DevicePacking const& packing) = 0;
  /// Notes that the library is about to enqueue work that writes `storage`. If the stream is being captured, the
  /// provider refuses replays of the graph while `storage->frozen_by()` returns a text.
  virtual void will_write(Stream const& stream, std::shared_ptr<Storage const> const& storage) = 0;
  /// Keeps `object` alive until the stream has passed the work that is enqueued now; while the stream is being
  /// captured, as long as the graph lives. A later call of this provider drops it, in the calling thread.
  virtual void keep_alive(Stream const& stream, std::shared_ptr<void const> object) = 0;
};

/// Returns the provider of a kind of device. Loads nothing. `UsageError` for the CPU.
[[nodiscard]] CROSSRANK_EXPORT DeviceProvider& device_provider(Device::Kind kind);

}  // namespace crossrank::spi
