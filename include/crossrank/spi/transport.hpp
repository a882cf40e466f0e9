#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/process_group.hpp>
#include <crossrank/collective/reduce_op.hpp>
#include <crossrank/spi/node_memory.hpp>
#include <crossrank/spi/operation.hpp>

namespace crossrank::spi {

/// The bytes that an operation reads. The transport may read them until the operation has ended or `cancel` returns.
struct Source {
  std::span<std::byte const> bytes{};   ///< the bytes
  std::shared_ptr<void const> owner{};  ///< keeps the bytes alive; null when the caller does
};

/// The bytes that an operation writes. The transport may write them until the operation has ended or `cancel` returns.
struct Sink {
  std::span<std::byte> bytes{};   ///< the bytes
  std::shared_ptr<void> owner{};  ///< keeps the bytes alive; null when the caller does
};

/// Says how a reduction combines the elements of the ranks: in rank order, ((r0 op r1) op r2) and so on.
struct Reduction {
  Dtype dtype = Dtype::f32;     ///< type of the elements
  ReduceOp op = ReduceOp::sum;  ///< `ReduceOp` lists the dtypes that each supports
};

/// Says whether a section in which a rank runs the caller's code begins or ends.
enum class UserCode : std::uint8_t { begins, ends };

/// Names a posted operation of one transport.
enum class RequestId : std::uint64_t {};

/// Keeps what a transport has observed of the peers of one operation, between two calls of `watch_peers`.
class CROSSRANK_EXPORT PeerWatch {
 public:
  /// Ends the watch.
  virtual ~PeerWatch() = default;
};

/// The interface that a backend implements: non-blocking collectives and messages of one group, in bytes.
///
/// The library calls a transport from one thread at a time. All ranks of the group post the same collectives in the
/// same order; messages are ordered only within a pair of ranks and a direction. There is one collective at a
/// time: a second one that is posted before the first has ended throws `UsageError`, and so does a post after `close`.
/// A rank that waits for a message advances all operations that it has posted. The library waits for every operation,
/// tests it until it has ended, or cancels it.
///
/// `test` and `wait` throw a failure as a typed error, with the same root cause on every rank. If the error leaves the
/// group dead, every later call throws it again.
class CROSSRANK_EXPORT Transport {
 public:
  /// Leaves the group unless `close` has left it.
  virtual ~Transport() = default;

  /// Returns "fake", "shm", "mpi", "composite" or the name of a plugin.
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
  /// Returns the group's part of this node's shared memory, or null where there is none.
  [[nodiscard]] virtual std::shared_ptr<NodeMemory> node_memory() const noexcept { return nullptr; }
  /// Returns the vendor's own group of these ranks, in this order, for the caller's direct use. Empty when there is
  /// none.
  [[nodiscard]] virtual std::optional<ProcessGroup> native_group() const noexcept { return {}; }

  /// Posts a barrier.
  [[nodiscard]] virtual RequestId post_barrier(Signature) = 0;
  /// Posts a broadcast. `buffer` is read on `root` and written elsewhere; its size is the same on all ranks.
  [[nodiscard]] virtual RequestId post_broadcast(Signature, Sink buffer, int root) = 0;
  /// Posts an all-gather. `mine` has `counts[rank()]` bytes; `out` receives all, one after the other in rank order.
  [[nodiscard]] virtual RequestId post_all_gatherv(Signature, Source mine, std::span<std::size_t const> counts,
                                                   Sink out) = 0;
  /// Posts a send. It ends when `bytes` may be reused, which may require that the receiver has posted its recv.
  [[nodiscard]] virtual RequestId post_send(Source bytes, int dst, std::uint32_t tag) = 0;
  /// Posts a receive. It ends when the next message from `src` has arrived. Another size or tag is a `MismatchError`.
  [[nodiscard]] virtual RequestId post_recv(Sink bytes, int src, std::uint32_t tag) = 0;
  /// Posts a receive from any rank. It ends when the next message of some rank has arrived, and has stored that rank in
  /// `source` by then. Errors as for `post_recv`.
  ///
  /// A message goes to the receive that was posted first among those that name its sender and those from any rank.
  /// Where several ranks have sent, they take turns. A rank that has left the group is not waited for, unless all have.
  [[nodiscard]] virtual RequestId post_recv_any(Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) = 0;

  /// Returns whether the transport compares signatures and throws `MismatchError` before any data moves. If it does
  /// not, the library compares them itself at `CheckLevel::collective`.
  [[nodiscard]] virtual bool compares_signatures() const noexcept { return false; }
  /// Returns whether a collective can be posted without a wait for other ranks. Not so on shared memory as long as the
  /// receiver of a range with a lazy release has not closed it.
  [[nodiscard]] virtual bool can_post() noexcept { return true; }

  /// Returns whether a thread of the library may call the transport, while no other thread does.
  [[nodiscard]] virtual bool may_use_threads() const noexcept { return true; }

  // Optional operations. Where one returns nothing, the library runs a generic algorithm over the operations above. A
  // backend may base that decision only on values that are the same on all ranks. Counts are in bytes; in reductions
  // they are whole elements.

  /// Combines `in` of all ranks into `out` on all ranks. Both have the same size; `out` may be `in`.
  [[nodiscard]] virtual std::optional<RequestId> post_all_reduce(Signature, Source const& in, Sink const& out,
                                                                 Reduction);
  /// Combines `in` of all ranks into `out` on the root. `out` is empty on the other ranks.
  [[nodiscard]] virtual std::optional<RequestId> post_reduce(Signature, Source const& in, Sink const& out, int root,
                                                             Reduction);
  /// Combines `in` of all ranks; part r of `counts[r]` bytes goes to rank r.
  [[nodiscard]] virtual std::optional<RequestId> post_reduce_scatterv(Signature, Source const& in,
                                                                      std::span<std::size_t const> counts,
                                                                      Sink const& out, Reduction);
  /// Joins `counts[r]` bytes of each rank r in `out` on the root. `out` is empty on the other ranks.
  [[nodiscard]] virtual std::optional<RequestId> post_gatherv(Signature, Source const& mine,
                                                              std::span<std::size_t const> counts, Sink const& out,
                                                              int root);
  /// Sends `counts[r]` bytes of the root's `all` to each rank r. `all` is empty on the other ranks.
  [[nodiscard]] virtual std::optional<RequestId> post_scatterv(Signature, Source const& all,
                                                               std::span<std::size_t const> counts, Sink const& mine,
                                                               int root);
  /// Sends `send_counts[r]` bytes of `in` to each rank r and receives `recv_counts[r]` from it, all in rank order.
  [[nodiscard]] virtual std::optional<RequestId> post_all_to_allv(Signature, Source const& in,
                                                                  std::span<std::size_t const> send_counts,
                                                                  Sink const& out,
                                                                  std::span<std::size_t const> recv_counts);

  /// Advances the operation. Returns true once it has ended; the id is invalid from then on. Never blocks.
  [[nodiscard]] virtual bool test(RequestId) = 0;
  /// Blocks until the operation has ended, sleeping where the backend supports it. Throws `TimeoutError` when the time
  /// is up.
  virtual void wait(RequestId, TimeoutPolicy const& timeout_policy) = 0;
  /// Looks after the ranks that an operation waits for, as `wait` does between its naps. Never blocks. If one of them
  /// has made no progress for too long, the group fails, and the next `test` throws.
  ///
  /// A caller that polls with `test` calls it every 100 ms, or eight times per timeout if that is more often, with the
  /// same `watch`, null at first. Returns false where the transport cannot do so: only `wait` has a timeout there.
  [[nodiscard]] virtual bool watch_peers(RequestId, TimeoutPolicy const& timeout_policy,
                                         std::unique_ptr<PeerWatch>& watch);
  /// Cancels the operation; on return its buffers belong to the caller again.
  ///
  /// Cancelling a collective kills the group. The errors of all ranks say `why`, or that this rank cancelled the call.
  /// Cancelling a message that has not been sent or received yet has no other effect.
  virtual void cancel(RequestId, std::string_view why) noexcept = 0;
  /// Cancels the operation without a reason.
  void cancel(RequestId request_id) noexcept { cancel(request_id, {}); }

  /// Makes a group of `members`, in the order of their new ranks. Returns null where the list is empty.
  ///
  /// Collective over this group; blocks. `members` are ranks of this group; each of them passes the same list. The
  /// digest covers the lists of all ranks.
  [[nodiscard]] virtual std::shared_ptr<Transport> split(Signature, std::span<int const> members, std::string name,
                                                         TimeoutPolicy const& timeout_policy) = 0;
  /// Kills the group: the current and later calls of every rank throw `PeerLostError` with `why`.
  virtual void abort(std::string_view why) noexcept = 0;
  /// Kills the group because another transport has found that `members` are dead. They count as lost in every group.
  virtual void report_lost(std::span<int const> members, std::string_view why) noexcept;
  /// Kills the group because of `members`, which may continue in their other groups. The current and later calls of
  /// every rank, theirs too, throw `TimeoutError` when `code` is `timeout`, `MismatchError` when it is `mismatch`, else
  /// `PeerLostError`.
  virtual void report_failure(ErrorCode code, std::span<int const> members, std::string_view why) noexcept;
  /// Records that this rank throws an error of `member`, so that a launcher tells cause from effect when the job ends.
  /// The next collective of this rank forgets it.
  virtual void note_peer_error(int member) noexcept;
  /// Returns the ranks that have died or left, as far as this rank knows. Any thread; never blocks.
  [[nodiscard]] virtual std::vector<int> failed_ranks();
  /// Counts as progress of this rank, so that waiting ranks restart their timeouts.
  virtual void keep_alive() noexcept;
  /// Returns a number that changes whenever this rank makes progress, so that a caller that polls knows. Any thread;
  /// one load. 0 where the transport does not count.
  [[nodiscard]] virtual std::uint64_t progress() const noexcept;
  /// Begins or ends a section in which this rank runs the caller's code and `user_limit` applies to it. Sections may
  /// be nested.
  virtual void mark_user_code(UserCode section) noexcept;
  /// Sets a function that a waiting thread of this group calls from time to time.
  virtual void set_poll_hook(std::function<void()> hook);
  /// Runs a last barrier round and leaves the group. Collective; blocks; idempotent.
  virtual void close(TimeoutPolicy const& timeout_policy) = 0;
  /// Returns whether `close` has been called.
  [[nodiscard]] virtual bool is_closed() const noexcept = 0;
};

}  // namespace crossrank::spi
