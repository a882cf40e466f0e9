#pragma once
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/export.hpp>
#include <crossrank/serialize.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// Options of a queue, the same on all ranks.
struct QueueOptions {
  int writer_rank = 0;                 ///< the rank, in the group, that writes
  std::size_t chunk_bytes = 4U << 20;  ///< longest message that needs no memory of its own
  std::size_t chunks = 6;              ///< how many messages the writer may be ahead of the slowest reader
  std::string name = "queue";          ///< shown in errors, warnings and `crossrank inspect`
  std::chrono::nanoseconds warn_every{std::chrono::seconds(60)};  ///< how often a wait warns in the log; 0: never
};

/// Says how long one call waits, and what ends it sooner.
struct QueueWait {
  /// Waits without a limit and without warnings.
  static constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();
  std::optional<std::chrono::nanoseconds> timeout{};  ///< empty: the group's; 0: look once; `forever`: no limit
  std::stop_token stop{};                             ///< ends the wait with `CancelledError`
};

/// One end of a queue: one rank writes, and every reader gets every message, in order.
///
/// On the writer's node, messages go through its shared memory: copied in once, and read in place or copied out once. A
/// tensor longer than a chunk is not copied out at all. A waiting end sleeps until it is woken. To readers on other
/// nodes messages go by packets, with one copy at the writer for all of them and an answer from each; these ends poll.
/// The writer is never more than `chunks` messages ahead of any reader.
///
/// Waits end with a `TimeoutError` that names the ranks that keep this end waiting, a `PeerLostError` when a rank has
/// died or gone without `close`, or a `CancelledError`. All ends blame the same ranks: a reader that times out names
/// the reader that the writer waits for. The call can be repeated after a timeout. None of these errors harms the group
/// that the queue was made from, unless a member has died. An end that is dropped after a timeout ends the queue for
/// all, with its error.
///
/// A handle, cheap to copy; all copies name the same end. Two calls on one end at the same time are a `UsageError`,
/// except `cancel`. Follows vLLM's shared-memory message queue.
class CROSSRANK_EXPORT MessageQueue {
 public:
  /// Makes a handle to no queue. Every member except `connected()` then throws a `UsageError`.
  MessageQueue() noexcept = default;

  /// Makes a queue from `writer_rank` to all other ranks of the group, and returns this rank's end.
  ///
  /// Collective; two barrier rounds, and one for each reader on another node than the writer. `chunks * chunk_bytes`
  /// are reserved at once: `UnavailableError` on all ranks when there is not enough memory, or when the writer's node
  /// has no space for another queue. `UsageError` for no chunks or 2^32 and more. `MismatchError` when the options
  /// differ.
  [[nodiscard]] static MessageQueue create(Collective const& group, QueueOptions const& options = {});
  /// Makes the writing end of a queue for `readers` readers on this node, who attach by its handle, now or later.
  ///
  /// Local. `UnavailableError` when the group has no shared memory; a rank that is alone shares memory with itself.
  [[nodiscard]] static MessageQueue create_writer(Collective const& group, int readers,
                                                  QueueOptions const& options = {});
  /// Attaches to the queue that the handle names, as reader number `reader`, from 0, in this process's job.
  ///
  /// Local. `FormatError` for bytes that are no handle, `UsageError` when the reader's place is taken or the queue has
  /// ended, `UnavailableError` when it belongs to another job or node.
  [[nodiscard]] static MessageQueue attach(std::span<std::byte const> handle, int reader);
  /// Attaches as a rank of `group`, where ranks are threads of one process. Errors as above.
  [[nodiscard]] static MessageQueue attach(Collective const& group, std::span<std::byte const> handle, int reader);

  /// Returns whether the handle names a queue. Local.
  [[nodiscard]] bool connected() const noexcept { return state_ != nullptr; }
  /// Returns whether this end writes. Local.
  [[nodiscard]] bool is_writer() const;
  /// Returns the queue's name. Local.
  [[nodiscard]] std::string const& name() const;
  /// Returns how many messages this end has written or read. Local.
  [[nodiscard]] std::uint64_t messages() const;
  /// Returns bytes that name the queue for readers on this node, to be sent by any channel. Writer only. Valid until
  /// the writer's last handle goes.
  [[nodiscard]] std::vector<std::byte> handle() const;

  /// Writes an object: any type that cereal serializes, scalars, strings, `Json`, a `Tensor` or a `TensorDict` with
  /// tensors on the CPU. Returns when `value` may be changed. Blocks while a reader is `chunks` messages behind.
  template <class T>
  void enqueue(T const& value, QueueWait const& wait = {}) const;
  /// Returns the next message as a `T`; nothing once the writer has closed and all is read.
  ///
  /// `FormatError` when the message is no `T`; the message is consumed then. Tensors as by `dequeue_tensor`.
  template <class T>
  [[nodiscard]] std::optional<T> dequeue(QueueWait const& wait = {}) const;

  /// Writes bytes as they are. Returns when they may be reused. Blocks while a reader is `chunks` messages behind.
  void enqueue_bytes(std::span<std::byte const> message, QueueWait const& wait = {}) const;
  /// Returns the bytes of the next message; nothing once the writer has closed and all is read.
  [[nodiscard]] std::optional<std::vector<std::byte>> dequeue_bytes(QueueWait const& wait = {}) const;
  /// Calls `body` with the next message in place. Returns false once the writer has closed and all is read. A `body`
  /// that throws has consumed the message.
  bool read_bytes(std::function<void(std::span<std::byte const>)> const& body, QueueWait const& wait = {}) const;

  /// Writes a tensor on the CPU: dtype, shape and bytes. Blocks as `enqueue` does.
  void enqueue_tensor(Tensor const& tensor, QueueWait const& wait = {}) const;
  /// Returns the next message, a tensor; nothing once the writer has closed and all is read.
  ///
  /// Up to `chunk_bytes` it is a copy. Beyond that it views the writer's memory, which stays as long as the tensor and
  /// cannot be written (`clone()`). `FormatError` when the message is no tensor.
  [[nodiscard]] std::optional<Tensor> dequeue_tensor(QueueWait const& wait = {}) const;

  /// Writes a tree of tensors and JSON. Blocks as `enqueue` does.
  void enqueue_dict(TensorDict const& dict, QueueWait const& wait = {}) const;
  /// Returns the next message, a tree; nothing once the writer has closed and all is read. Tensors as by
  /// `dequeue_tensor`, except that up to 1 KiB of a tensor is copied in any case.
  [[nodiscard]] std::optional<TensorDict> dequeue_dict(QueueWait const& wait = {}) const;

  /// Blocks until a call would not have to wait: on a reader for a message or the end, on the writer for space, and
  /// after `close` for all readers to have read everything. Returns false when `timeout` is over.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// Ends this end's present call and all later ones with a `CancelledError`. From any thread; never throws.
  void cancel() const noexcept;
  /// Closes this end. Idempotent.
  ///
  /// A writer says that no message will follow; readers still read what is there. A reader is not waited for again.
  /// Dropping the last handle without `close()` counts as a lost peer. The last handle of a closed writer waits until
  /// readers on other nodes have everything, at most for the group's timeout.
  void close() const;

 private:
  struct State;
  explicit MessageQueue(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] State& state(char const* operation) const;

  std::shared_ptr<State> state_{};
};

template <class T>
void MessageQueue::enqueue(T const& value, QueueWait const& wait) const {
  if constexpr (std::same_as<T, Tensor>) {
    enqueue_tensor(value, wait);
  } else if constexpr (std::same_as<T, TensorDict>) {
    enqueue_dict(value, wait);
  } else if constexpr (std::convertible_to<T const&, std::string_view> && !std::same_as<T, std::string>) {
    enqueue_bytes(encode_object(std::string(std::string_view(value))), wait);
  } else {
    detail::require_object<T>();
    enqueue_bytes(encode_object(value), wait);
  }
}

template <class T>
std::optional<T> MessageQueue::dequeue(QueueWait const& wait) const {
  if constexpr (std::same_as<T, Tensor>) {
    return dequeue_tensor(wait);
  } else if constexpr (std::same_as<T, TensorDict>) {
    return dequeue_dict(wait);
  } else {
    detail::require_object<T>();
    std::optional<T> value;
    read_bytes([&](std::span<std::byte const> bytes) { value = decode_object<T>(bytes); }, wait);
    return value;
  }
}

}  // namespace crossrank
