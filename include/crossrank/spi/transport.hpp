#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/process_group.hpp>
#include <crossrank/reduce_op.hpp>

namespace crossrank::node {
class Group;
}

namespace crossrank::spi {

/// What a rank does in its group; the same on every rank of a barrier round.
enum class OpKind : std::uint8_t {
  none,
  barrier,
  broadcast,
  all_gatherv,
  send,
  recv,
  split,
  all_reduce,
  reduce,
  gatherv,
  scatterv,
  reduce_scatterv,
  all_to_allv,
  range_open,
  range_close,
  close,
  check,
  enqueue,
  dequeue,
};

/// Returns the name of `op_kind` as users call it ("all_gatherv").
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(OpKind op_kind) noexcept;

/// What a rank says of the call that it posts. Ranks that differ get a `MismatchError` before any data moves.
struct Signature {
  OpKind op_kind = OpKind::none;  ///< the call
  std::uint64_t digest = 0;       ///< of the arguments that all ranks must agree on; 0 when there are none
  /// The same arguments for people, at most 119 bytes in a form that only the library reads: what the error of ranks
  /// that differ says of each. Valid until the operation has ended. May be empty.
  std::string_view arguments{};
};

/// How long a call may wait.
struct TimeoutPolicy {
  std::chrono::milliseconds timeout{300'000};  ///< time without progress of the rank waited for
  std::chrono::milliseconds user_limit{
      21'600'000};  ///< the same while that rank runs the user's code in a range or guard
};

/// Bytes that an operation reads. The transport may read them until the operation has ended or `cancel` has returned.
struct Source {
  std::span<std::byte const> bytes{};   ///< the bytes
  std::shared_ptr<void const> owner{};  ///< keeps them alive; null when the caller's frame does
};

/// Bytes that an operation writes. The transport may write them until the operation has ended or `cancel` has returned.
struct Sink {
  std::span<std::byte> bytes{};   ///< the bytes
  std::shared_ptr<void> owner{};  ///< keeps them alive; null when the caller's frame does
};

/// How the elements of the ranks are combined: ((r0 op r1) op r2) and so on, in rank order, element by element.
struct Reduction {
  Dtype dtype = Dtype::f32;     ///< type of the elements
  ReduceOp op = ReduceOp::sum;  ///< see `ReduceOp` for the dtypes of each
};

/// Names a posted operation of one transport.
enum class RequestId : std::uint64_t {};

/// The interface that a backend implements: byte-level collectives for one group, posted first, then tested or waited
/// for.
///
/// Calls come from one thread at a time. All ranks of the group post the same operations in the same order. Only send
/// and recv are ordered by pair and direction. There is one collective at a time: a second one that is posted before
/// the first has ended is a `UsageError`, as is a post after `close`. A rank that waits for a message advances all
/// posted operations. Every operation is waited for, tested until it has ended, or cancelled.
///
/// A failure surfaces from `test` or `wait` as a typed error, with the same root cause on every rank. After an error
/// that leaves the group dead, every later call throws the same error.
class CROSSRANK_EXPORT Transport {
 public:
  /// Leaves the group, if `close` has not.
  virtual ~Transport() = default;

  /// Returns "fake", "shm", "mpi" or "composite".
  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  /// Returns the group's name.
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  /// Returns this rank's number in the group.
  [[nodiscard]] virtual int rank() const noexcept = 0;
  /// Returns the number of ranks in the group.
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Returns the rank of the job for each rank of this group.
  [[nodiscard]] virtual std::span<int const> global_ranks() const noexcept = 0;
  /// Returns the ranks of this group that are on this node, ascending, this one included.
  [[nodiscard]] virtual std::span<int const> node_ranks() const noexcept = 0;
  /// The group's part of this node's shared memory, or null where there is none.
  [[nodiscard]] virtual std::shared_ptr<node::Group> node_group() const noexcept { return nullptr; }
  /// Returns the vendor's own group of these ranks in this order, for the caller's calls to the vendor; nothing when
  /// there is none.
  [[nodiscard]] virtual std::optional<ProcessGroup> native_group() const noexcept { return {}; }

  /// Posts a barrier.
  [[nodiscard]] virtual RequestId post_barrier(Signature) = 0;
  /// Posts a broadcast. `buffer` is read on `root` and written elsewhere; its size is the same on all ranks.
  [[nodiscard]] virtual RequestId post_broadcast(Signature, Sink buffer, int root) = 0;
  /// Posts an all-gather. `mine` has `counts[rank()]` bytes; `out` receives all, one after the other in rank order.
  [[nodiscard]] virtual RequestId post_all_gatherv(Signature, Source mine, std::span<std::size_t const> counts,
                                                   Sink out) = 0;
  /// Posts a send. It ends when `bytes` may be reused, which may need the receiver.
  [[nodiscard]] virtual RequestId post_send(Source bytes, int dst, std::uint32_t tag) = 0;
  /// Posts a receive. It ends when the next message of `src` has arrived; another size or tag is a `MismatchError`.
  [[nodiscard]] virtual RequestId post_recv(Sink bytes, int src, std::uint32_t tag) = 0;

  /// Returns whether ranks that post different signatures get a `MismatchError` before any data moves. Otherwise the
  /// collective compares them itself, at the check level that asks for it.
  [[nodiscard]] virtual bool compares_signatures() const noexcept { return false; }

  // Optional operations. Nothing: the generic algorithm over the operations above runs in its place. Whether a backend
  // answers must depend only on what all ranks know alike. Counts are in bytes, whole elements where there is a
  // reduction.

  /// Combines `in` of all ranks into `out` of all; both have the same size, and `out` may be `in`.
  [[nodiscard]] virtual std::optional<RequestId> post_all_reduce(Signature, Source const& in, Sink const& out,
                                                                 Reduction);
  /// Combines `in` of all ranks into `out` of the root, which is empty elsewhere.
  [[nodiscard]] virtual std::optional<RequestId> post_reduce(Signature, Source const& in, Sink const& out, int root,
                                                             Reduction);
  /// Combines `in` of all ranks; part r of `counts[r]` bytes goes to rank r.
  [[nodiscard]] virtual std::optional<RequestId> post_reduce_scatterv(Signature, Source const& in,
                                                                      std::span<std::size_t const> counts,
                                                                      Sink const& out, Reduction);
  /// Joins `counts[r]` bytes of each rank r on `root`; `out` is empty elsewhere.
  [[nodiscard]] virtual std::optional<RequestId> post_gatherv(Signature, Source const& mine,
                                                              std::span<std::size_t const> counts, Sink const& out,
                                                              int root);
  /// Gives each rank r its `counts[r]` bytes of the root's `all`, which is empty elsewhere.
  [[nodiscard]] virtual std::optional<RequestId> post_scatterv(Signature, Source const& all,
                                                               std::span<std::size_t const> counts, Sink const& mine,
                                                               int root);
  /// Sends `send_counts[r]` bytes of `in` to each rank r and receives `recv_counts[r]` from it, all in rank order.
  [[nodiscard]] virtual std::optional<RequestId> post_all_to_allv(Signature, Source const& in,
                                                                  std::span<std::size_t const> send_counts,
                                                                  Sink const& out,
                                                                  std::span<std::size_t const> recv_counts);

  /// Advances the operation. Returns true once it has ended; it must not be named after that. Never blocks.
  [[nodiscard]] virtual bool test(RequestId) = 0;
  /// Blocks until the operation has ended, asleep where the backend can. Throws when the time is over.
  virtual void wait(RequestId, TimeoutPolicy const& timeout_policy) = 0;
  /// Cancels the operation; on return its buffers belong to the caller again.
  ///
  /// Cancelling a collective kills the group, and all ranks are told `why`, or that this rank cancelled it. A message
  /// that has not been sent or received yet leaves no trace.
  virtual void cancel(RequestId, std::string_view why) noexcept = 0;
  /// Cancels the operation without a reason.
  void cancel(RequestId request_id) noexcept { cancel(request_id, {}); }

  /// Makes the group whose members are `members`, in the order of their new ranks; null where the list is empty.
  ///
  /// Collective over this group; blocks. `members` are ranks of this group, the same list on each of them. The digest
  /// covers the lists of all ranks.
  [[nodiscard]] virtual std::shared_ptr<Transport> split(Signature, std::span<int const> members, std::string name,
                                                         TimeoutPolicy const& timeout_policy) = 0;
  /// Kills the group: every rank's present and later calls throw a `PeerLostError` with `why`.
  virtual void abort(std::string_view why) noexcept = 0;
  /// Kills the group because `members` are dead or gone, as a rank that is nearer to them has seen.
  virtual void report_lost(std::span<int const> members, std::string_view why) noexcept;
  /// Counts as progress of this rank for the ranks that wait for it.
  virtual void keep_alive() noexcept;
  /// Begins (1) or ends (-1) a time in which this rank runs the caller's code, and `user_limit` applies to it.
  virtual void enter_user_code(int change) noexcept;
  /// Calls `look` now and then, in the thread that waits, as long as somebody waits in this group.
  virtual void set_poll_hook(std::function<void()> look);
  /// Runs a last barrier round with the group and leaves it. Collective; blocks; idempotent.
  virtual void close(TimeoutPolicy const& timeout_policy) = 0;
  /// Returns whether `close` has been called.
  [[nodiscard]] virtual bool is_closed() const noexcept = 0;
};

}  // namespace crossrank::spi
