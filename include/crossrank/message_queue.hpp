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

struct QueueOptions {
  int writer_rank = 0;                 ///< in the group: who writes
  std::size_t chunk_bytes = 4U << 20;  ///< longest message that needs no memory of its own
  std::size_t chunks = 6;              ///< messages that the writer may be ahead of the slowest reader
  std::string name = "queue";          ///< in errors, warnings and `crossrank inspect`
  std::chrono::nanoseconds warn_every{std::chrono::seconds(60)};  ///< of waiting, to the log sink; 0: never
};

/// How long one call waits, and what ends it sooner.
struct QueueWait {
  static constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();
  std::optional<std::chrono::nanoseconds>
      timeout{};           ///< empty: the group's; 0: look once; `forever`: no limit, no warnings
  std::stop_token stop{};  ///< ends the wait with `CancelledError`
};

/// One end of a queue: one rank writes, every reader sees every message, in order.
///
/// On the writer's node messages go through its shared memory, copied once in and read in place or copied once out; a
/// tensor too long for a chunk is not copied out at all, and who waits sleeps until it is woken. To readers on other
/// nodes they go by a group of the two, one copy at the writer for all of them, with an answer for each; they wait by
/// looking now and then. The writer is never more than `chunks` messages ahead of any reader. A timeout, a cancel or a
/// lost peer ends the call and leaves the group that the queue was made of alone, unless a member has died. A handle,
/// cheap to copy, all copies name the same end; two calls on one end at the same time are a `UsageError`, but for
/// `cancel`.
///
/// Waits end with `TimeoutError`, which names the ranks that keep this end waiting, `PeerLostError` when a rank has
/// died or gone without `close`, and `CancelledError`. All ends blame the same ranks: a reader that times out names the
/// reader that the writer waits for, and an end that leaves because of another one is not blamed. After a timeout the
/// call can be repeated; an end whose handle goes instead ends the queue for all, with its verdict. Follows vLLM's
/// shared-memory message queue.
class CROSSRANK_EXPORT MessageQueue {
 public:
  /// No queue. Every member but `connected()` is a `UsageError`.
  MessageQueue() noexcept = default;

  /// Makes a queue from `writer_rank` to all other ranks of the group. Collective; two meetings, and one for each
  /// reader on another node than the writer. `chunks * chunk_bytes` are reserved at once: `UnavailableError` on all
  /// ranks when there is no memory for them, or when the writer's node has as many groups and queues as it has room
  /// for. `UsageError` for no chunks or 2^32 and more. `MismatchError` when the options differ.
  [[nodiscard]] static MessageQueue create(Collective const& group, QueueOptions const& options = {});
  /// Makes the writing end of a queue with places for `readers` readers on this node, who attach by its handle, now or
  /// later. Local. `UnavailableError` where the group has no shared memory; a rank that is alone shares it with itself.
  [[nodiscard]] static MessageQueue create_writer(Collective const& group, int readers,
                                                  QueueOptions const& options = {});
  /// Takes a reader's place, from 0, of the queue that the handle names, in this process's job. Local. `FormatError`
  /// for bytes that are no handle, `UsageError` when the place is taken or the queue has ended, `UnavailableError` when
  /// it belongs to another job or node.
  [[nodiscard]] static MessageQueue attach(std::span<std::byte const> handle, int reader);
  /// The same as a rank of `group`: where ranks are threads of one process.
  [[nodiscard]] static MessageQueue attach(Collective const& group, std::span<std::byte const> handle, int reader);

  [[nodiscard]] bool connected() const noexcept { return state_ != nullptr; }
  [[nodiscard]] bool is_writer() const;
  [[nodiscard]] std::string const& name() const;
  /// How many messages this end has written or read.
  [[nodiscard]] std::uint64_t messages() const;
  /// Names the queue for readers on this node; bytes that may travel by any channel. Writer only. Of use until the
  /// writer's last handle goes.
  [[nodiscard]] std::vector<std::byte> handle() const;

  /// Writes an object: any type that cereal serializes, scalars, strings, `Json`, a `Tensor` or a `TensorDict`, whose
  /// tensors are on the CPU. Returns when `value` may be changed; waits while a reader is `chunks` messages behind.
  template <class T>
  void enqueue(T const& value, QueueWait const& wait = {}) const;
  /// The next message as a `T`; nothing once the writer has closed and all is read. `FormatError` when it is no `T`:
  /// the message is consumed then. Tensors as by `dequeue_tensor`.
  template <class T>
  [[nodiscard]] std::optional<T> dequeue(QueueWait const& wait = {}) const;

  /// Writes bytes as they are. Returns when the bytes may be reused; waits while a reader is `chunks` messages behind.
  void enqueue_bytes(std::span<std::byte const> message, QueueWait const& wait = {}) const;
  /// The next message; nothing once the writer has closed and all is read.
  [[nodiscard]] std::optional<std::vector<std::byte>> dequeue_bytes(QueueWait const& wait = {}) const;
  /// Gives the next message to `body`, in place; false once the writer has closed and all is read. A `body` that throws
  /// has consumed the message.
  bool read_bytes(std::function<void(std::span<std::byte const>)> const& body, QueueWait const& wait = {}) const;

  /// Writes a tensor on the CPU: dtype, shape and bytes.
  void enqueue_tensor(Tensor const& tensor, QueueWait const& wait = {}) const;
  /// The next message, a tensor: its own copy up to `chunk_bytes`, beyond that a view of the writer's memory, which
  /// stays as long as the tensor and cannot be written (`clone()`). `FormatError` when the message is no tensor.
  [[nodiscard]] std::optional<Tensor> dequeue_tensor(QueueWait const& wait = {}) const;

  /// The same for a tree of tensors and JSON. Up to 1 KiB of a tensor is copied in any case.
  void enqueue_dict(TensorDict const& dict, QueueWait const& wait = {}) const;
  [[nodiscard]] std::optional<TensorDict> dequeue_dict(QueueWait const& wait = {}) const;

  /// Waits until a call would not have to: on a reader for a message or the end, on the writer for room, and after
  /// `close` for all readers to have read everything. False when the time is over.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// Ends this end's present call and all later ones with `CancelledError`. Any thread; never throws.
  void cancel() const noexcept;
  /// Writer: no message will follow; readers read what is there. Reader: wants no more, and is not waited for again.
  /// Idempotent. An end whose last handle goes without it is lost, and the other side is told. After it the last handle
  /// of a writer waits until readers on other nodes have all, at most for the group's timeout.
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
