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
  int writer_rank = 0;                 ///< rank of the writer in the group
  std::size_t chunk_bytes = 4U << 20;  ///< longest message that fits in a chunk
  std::size_t chunks = 6;              ///< number of messages that the writer may be ahead of the slowest reader
  std::string name = "queue";          ///< shown in errors, warnings and `crossrank inspect`
  std::chrono::nanoseconds warn_every{std::chrono::seconds(60)};  ///< interval of log warnings during a wait; 0: none
};

/// Says how long a call waits, and how it can be stopped earlier.
struct QueueWait {
  /// Waits without a limit and without warnings.
  static constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();
  /// Empty: the group's; 0: does not wait; `forever`: no limit. Even `forever` ends when a rank dies, unless no rank of
  /// its host is left that could tell the other hosts.
  std::optional<std::chrono::nanoseconds> timeout{};
  std::stop_token stop{};  ///< ends the wait with `CancelledError`
};

/// One endpoint of a queue: one rank writes, and every reader gets every message, in order.
///
/// On the writer's node, messages go through its shared memory. A message is copied in once, and read in place or
/// copied out once. A tensor longer than a chunk is not copied out. A waiting endpoint sleeps until it is woken.
/// Readers on other nodes get packets: the writer makes one copy for all of them, and each reader acknowledges. These
/// endpoints poll. The writer is never more than `chunks` messages ahead of any reader.
///
/// A wait can fail with a `TimeoutError` that names the ranks it waits for, a `PeerLostError` when a rank has died or
/// left without `close`, or a `CancelledError`. All endpoints blame the same ranks: a reader that times out names the
/// reader that the writer waits for. An error lists at most 16 ranks and counts the others in its text. A rank outside
/// the group has no number in it, so only the text names it. The call can be repeated after a timeout. The group that
/// the queue was made from stays usable, unless a member has died. If an endpoint is dropped after a timeout, the queue
/// fails on all endpoints with its error. A call whose limit is much shorter than the group's timeout (less than about
/// a quarter) is a poll: its timeout does not count, and the other endpoints blame the dropped endpoint.
///
/// Only `create` is collective. A handle, cheap to copy; all copies name the same endpoint. Two calls on one endpoint
/// at the same time are a `UsageError`, except `cancel`. Follows vLLM's shared-memory message queue.
class CROSSRANK_EXPORT MessageQueue {
 public:
  /// Makes a handle without a queue. `cancel()` then does nothing; every other member except `connected()` throws a
  /// `UsageError`.
  MessageQueue() noexcept = default;

  /// Makes a queue from `writer_rank` to all other ranks of the group, and returns this rank's endpoint.
  ///
  /// Collective; two barrier rounds, and one more for each reader on another node than the writer. Reserves
  /// `chunks * chunk_bytes` at once. `UnavailableError` on all ranks when there is not enough memory, or when the
  /// writer's node has no space for another queue. `UsageError` unless `chunks` is between 1 and 2^32 - 1.
  /// `MismatchError` when the options differ.
  [[nodiscard]] static MessageQueue create(Collective const& group, QueueOptions const& options = {});
  /// Makes the writing endpoint of a queue for `readers` readers on this node. They attach by its handle, now or later.
  ///
  /// Local. `UnavailableError` when the group has no shared memory. A group of one rank has shared memory.
  [[nodiscard]] static MessageQueue create_writer(Collective const& group, int readers,
                                                  QueueOptions const& options = {});
  /// Attaches to a queue of this process's job by its handle, as reader number `reader`, from 0.
  ///
  /// Local. `FormatError` for bytes that are not a handle, `UsageError` when another reader has that number or the
  /// queue has ended, `UnavailableError` when it belongs to another job or node.
  [[nodiscard]] static MessageQueue attach(std::span<std::byte const> handle, int reader);
  /// Attaches as a rank of `group`, for ranks that are threads of one process. Local; errors as above.
  [[nodiscard]] static MessageQueue attach(Collective const& group, std::span<std::byte const> handle, int reader);

  /// Returns whether the handle refers to a queue. Local.
  [[nodiscard]] bool connected() const noexcept { return state_ != nullptr; }
  /// Returns whether this endpoint writes. Local.
  [[nodiscard]] bool is_writer() const;
  /// Returns the queue's name. Local.
  [[nodiscard]] std::string const& name() const;
  /// Returns how many messages this endpoint has written or read. Local.
  [[nodiscard]] std::uint64_t messages() const;
  /// Returns bytes by which readers on this node attach; send them over any channel. Local, on the writer only. Valid
  /// until the writer's last handle is dropped.
  [[nodiscard]] std::vector<std::byte> handle() const;

  /// Writes an object: any type that cereal serializes, a scalar, a string, `Json`, a `Tensor` or a `TensorDict`.
  ///
  /// Returns when the caller may change `value`. Blocks while a reader is `chunks` messages behind, or while messages
  /// that have not been read fill this rank's shared memory. If the node has no memory for a message of more than
  /// `chunk_bytes` and other ranks have free memory, waits for theirs, at most 5 s, whatever `wait` says.
  /// `UnavailableError` if that does not suffice.
  template <class T>
  void enqueue(T const& value, QueueWait const& wait = {}) const;
  /// Returns the next message as a `T`; nothing after the last message of a closed writer.
  ///
  /// `FormatError` when the message is not a `T`; the message is consumed anyway. Tensors as for `dequeue_tensor`.
  template <class T>
  [[nodiscard]] std::optional<T> dequeue(QueueWait const& wait = {}) const;

  /// Writes raw bytes. Returns when the caller may reuse them. Blocks as `enqueue` does.
  void enqueue_bytes(std::span<std::byte const> message, QueueWait const& wait = {}) const;
  /// Writes one message of several parts, which it copies one after the other. Otherwise as `enqueue_bytes`. Follows
  /// `writev` of POSIX.
  void enqueue_parts(std::span<std::span<std::byte const> const> parts, QueueWait const& wait = {}) const;
  /// Returns the bytes of the next message; nothing after the last message of a closed writer.
  [[nodiscard]] std::optional<std::vector<std::byte>> dequeue_bytes(QueueWait const& wait = {}) const;
  /// Calls `body` with the next message in place. Returns false after the last message of a closed writer. The message
  /// is consumed even if `body` throws.
  bool read_bytes(std::function<void(std::span<std::byte const>)> const& body, QueueWait const& wait = {}) const;

  /// Writes a tensor: dtype, shape, kind of device and bytes. Blocks as `enqueue` does.
  ///
  /// A tensor on a GPU is read in the order of its current stream, in pieces of 4 MiB through page-locked memory, and
  /// the host waits for each. `UsageError` while that stream is being captured, `BackendError` when the GPU fails; the
  /// message has not been sent then.
  void enqueue_tensor(Tensor const& tensor, QueueWait const& wait = {}) const;
  /// Returns the tensor of the next message; nothing after the last message of a closed writer.
  ///
  /// A tensor of up to `chunk_bytes` is a copy. A longer one is a read-only view of the writer's memory, valid as long
  /// as the tensor exists; `clone()` makes a writable copy. `FormatError` when the message is not a tensor.
  ///
  /// A tensor that was on a GPU arrives on this rank's `default_device()`, in the order of its current stream, and is
  /// writable. `UnavailableError` without a GPU or without enough of its memory. The message is consumed even then.
  [[nodiscard]] std::optional<Tensor> dequeue_tensor(QueueWait const& wait = {}) const;

  /// Writes a tree of tensors and JSON. Blocks as `enqueue` does.
  void enqueue_dict(TensorDict const& dict, QueueWait const& wait = {}) const;
  /// Returns the tree of the next message; nothing after the last message of a closed writer. Tensors as for
  /// `dequeue_tensor`, except that a tensor of up to 1 KiB is always copied.
  [[nodiscard]] std::optional<TensorDict> dequeue_dict(QueueWait const& wait = {}) const;

  /// Blocks until the next call would not block: on a reader until there is a message or the end, on the writer until
  /// there is space, and after `close` until all readers have read everything. Returns false after `timeout`; throws
  /// the other errors of a wait. `stop` ends the wait with `CancelledError`.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout, std::stop_token stop = {}) const;
  /// Makes this endpoint's current call and all later ones throw a `CancelledError`. May be called from any thread.
  void cancel() const noexcept;
  /// Closes this endpoint. Idempotent.
  ///
  /// The writer's `close` ends the stream; readers can still read the remaining messages. After a reader's `close` the
  /// writer no longer waits for it. Dropping the last handle without `close()` counts as a lost peer. Dropping the last
  /// handle of a closed writer waits until readers on other nodes have received everything, at most for the group's
  /// timeout.
  void close() const;

 private:
  struct State;
  explicit MessageQueue(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] State& state(char const* operation) const;
  /// Like `read_bytes`, for a `decode` of the library: its `FormatError` gets the queue, the rank and a hint.
  bool read_object(std::function<void(std::span<std::byte const>)> const& decode, QueueWait const& wait) const;

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
    read_object([&](std::span<std::byte const> bytes) { value = decode_object<T>(bytes); }, wait);
    return value;
  }
}

}  // namespace crossrank
