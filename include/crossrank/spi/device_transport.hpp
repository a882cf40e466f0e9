#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/spi/operation.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

namespace crossrank::spi {

/// A collective on tensors of devices, in bytes. It views memory of the caller, for the length of a call.
struct DeviceCollective {
  OpKind op_kind = OpKind::none;                  ///< the operation, never a barrier or a message
  char const* name = "";                          ///< how the user called it, for errors
  std::span<std::byte const> in{};                ///< device memory; empty where this rank gives nothing
  std::span<std::byte> out{};                     ///< device memory; empty where this rank gets nothing
  std::span<std::size_t const> counts{};          ///< bytes by rank, of what is gathered, scattered or sent
  std::span<std::size_t const> receive_counts{};  ///< bytes by rank, of what an exchange receives
  bool has_equal_parts = false;                   ///< of an exchange: on all ranks all parts have the same size
  int root = 0;                                   ///< of a broadcast, reduce, gather or scatter
  Reduction reduction{};                          ///< of a reduction; its order of ranks is the transport's own
};

/// Whether a device transport carries a collective.
enum class CollectiveSupport : std::uint8_t {
  none,         ///< the library stages the collective through host memory
  graphs_only,  ///< only in captured graphs, because they cannot use host memory; a NaN may be lost there
  full          ///< in captured graphs and outside of them
};

/// The place of a rank in the group of a device transport.
struct DevicePlace {
  Device device{};  ///< its device
  int rank = 0;     ///< its number in the group
  int ranks = 1;    ///< the number of ranks in the group
};

/// A failure that a device transport has found by itself.
struct DeviceTransportFailure {
  std::string message{};        ///< text for the user
  bool may_be_of_peer = false;  ///< whether the death of another rank can be the cause
};

/// Ends a wait of the host by throwing. A transport that waits on the host calls it from time to time.
using DevicePollHook = std::function<void()>;

/// The interface that a vendor's library for collectives implements: this rank's part of one group on a kind of device.
///
/// The library compares the arguments of the ranks before a call, watches the ranks and the streams, and records the
/// calls: a transport only moves data. All ranks enqueue the same collectives in the same order. The library calls
/// `enqueue`, `allocate_buffer`, `register_buffer` and `close` from one thread at a time, and the other members from
/// any thread, also meanwhile. `BackendError` when the vendor's library refuses.
class CROSSRANK_EXPORT DeviceTransport {
 public:
  /// Closes the transport unless `close` or `abort` has ended it.
  virtual ~DeviceTransport() = default;

  /// Returns where the transport carries the collective. Reductions that it does not carry are exchanged by it and
  /// combined by a kernel of the library, where all devices have the kernels. Other collectives go through host memory.
  /// Both keep the promises of the CPU: the order of ranks in sums, NaN in min and max. All ranks must get the same
  /// answer for the same call.
  [[nodiscard]] virtual CollectiveSupport support_for(DeviceCollective const& collective) const = 0;

  /// Enqueues a collective on the stream. Does not wait for the device. When the stream is being captured, the
  /// collective becomes a part of the graph, and runs at each replay. Where the library needs the other ranks in order
  /// to enqueue, it may wait for them, with a deadline: `TimeoutError`, and what `poll_hook` throws.
  virtual void enqueue(DeviceCollective const& collective, Stream const& stream, DevicePollHook const& poll_hook) = 0;

  /// Allocates memory that collectives use without copies of the transport's own, or returns null where there is none.
  [[nodiscard]] virtual std::shared_ptr<Storage> allocate_buffer(std::size_t bytes) = 0;
  /// Makes memory of `allocate_buffer` known to the group, and keeps it until the transport ends. Collective, with the
  /// same number of bytes on all ranks. Errors as for `enqueue`.
  virtual void register_buffer(std::shared_ptr<Storage> buffer, DevicePollHook const& poll_hook) = 0;

  /// Returns the vendor's handle, or null once it has ended.
  [[nodiscard]] virtual void* native() noexcept = 0;
  /// Returns a failure of the transport, such as a lost connection; nothing while it works. Never blocks. The library
  /// asks ten times a second, and aborts the group when there is one.
  [[nodiscard]] virtual std::optional<DeviceTransportFailure> failure() = 0;
  /// Ends the enqueued work on this rank, so that its streams continue; the results are undetermined. Later calls
  /// throw. The work of other ranks must not end with it: each rank aborts its own, when it knows the failure.
  virtual void abort() noexcept = 0;
  /// Ends the transport after its work, or aborts it where that takes longer than some seconds. `last_work` is the end
  /// of the work that was enqueued last.
  virtual void close(Event const& last_work) noexcept = 0;
};

/// The description of its library and device that a rank sends to the others, in bytes that only its factory reads.
using DeviceTransportOffer = std::array<std::byte, 192>;
/// The id of a new group, which one rank draws for all.
using DeviceTransportId = std::array<std::byte, 256>;

/// Makes the device transports of one library.
///
/// The ranks of a group agree on a factory by its name at their first collective on device tensors. Where a rank has
/// none, or the ranks have different ones, collectives go through host memory. Any thread may call any member.
class CROSSRANK_EXPORT DeviceTransportFactory {
 public:
  /// Ends the factory. No transport that it made is in use.
  virtual ~DeviceTransportFactory() = default;

  /// Returns the name that `Collective::device_backend` and `CROSSRANK_DEVICE` use: "nccl". At most 23 characters,
  /// fixed.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Returns the name for messages: "NCCL". At most 23 characters, fixed.
  [[nodiscard]] virtual std::string_view title() const noexcept = 0;
  /// Returns whether the transports carry tensors on this kind of device.
  [[nodiscard]] virtual bool serves(Device::Kind kind) const noexcept = 0;

  /// Returns what the other ranks must know. `UnavailableError` that says why this rank cannot use the library.
  [[nodiscard]] virtual DeviceTransportOffer offer(Device device) = 0;
  /// Returns why ranks with these offers, in the order of their numbers, cannot form a group: "rank 1 has version 2".
  /// Nothing if they can. Must depend on the offers alone, so that all ranks decide alike.
  [[nodiscard]] virtual std::optional<std::string> objection(std::span<DeviceTransportOffer const> offers) const = 0;
  /// Draws the id of a new group.
  [[nodiscard]] virtual DeviceTransportId draw_id() = 0;
  /// Joins the group of `id`. Collective; blocks until all ranks have joined. `TimeoutError` when ranks are missing for
  /// longer than `timeout`, which is also the limit of later waits on the host, and what `poll_hook` throws.
  [[nodiscard]] virtual std::unique_ptr<DeviceTransport> join(DeviceTransportId const& id, DevicePlace const& place,
                                                              std::chrono::milliseconds timeout,
                                                              DevicePollHook const& poll_hook) = 0;
};

/// Lets groups of this process use a library, from their first collective on device tensors on. Local; any thread.
///
/// A rank takes the first factory that it can use: those that were added last come first, and NCCL last.
/// `CROSSRANK_DEVICE` chooses one by its name. Add the same ones on all ranks. `UsageError` for null, a name that is
/// empty, too long, "staged" or already taken.
CROSSRANK_EXPORT void add_device_transport(std::shared_ptr<DeviceTransportFactory> factory);

}  // namespace crossrank::spi
