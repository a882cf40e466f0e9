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

/// What a rank is doing in its group; the same on every rank of a meeting.
enum class Verb : std::uint8_t {
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

/// The name of `verb` as users call it ("all_gatherv").
[[nodiscard]] CROSSRANK_EXPORT char const* to_string(Verb verb) noexcept;

/// What a rank says of the call it posts: ranks that differ get `MismatchError` before any data moves.
struct Signature {
  Verb verb = Verb::none;
  std::uint64_t digest = 0;  ///< of the arguments that all ranks must agree on; 0 when there are none
  /// The same arguments for people, at most 119 bytes in a form that only the library reads: what the error of ranks
  /// that differ says of each. Valid until the operation has ended. May be empty.
  std::string_view notes{};
};

/// How long a call may wait.
struct Patience {
  std::chrono::milliseconds timeout{300'000};  ///< time without progress of the rank waited for
  std::chrono::milliseconds user_limit{
      21'600'000};  ///< the same while that rank runs the user's code in a range or guard
};

/// Bytes that an operation reads. The transport may read them until the operation has ended or `cancel` has returned.
struct Source {
  std::span<std::byte const> bytes{};
  std::shared_ptr<void const> owner{};  ///< keeps them alive; null when the caller's frame does
};

/// Bytes that an operation writes, under the same rule.
struct Sink {
  std::span<std::byte> bytes{};
  std::shared_ptr<void> owner{};
};

/// How the elements of the ranks become one: ((r0 op r1) op r2) ..., in rank order, element by element; see `ReduceOp`.
struct Reduction {
  Dtype dtype = Dtype::f32;
  ReduceOp op = ReduceOp::sum;
};

/// Names an operation under way on one transport.
enum class Ticket : std::uint64_t {};

/// What a backend implements: byte-level collectives for one group, each posted, then tested until it has ended.
///
/// Calls come from one thread at a time. All ranks of the group post the same verbs in the same order (send and recv
/// apart, which are ordered by pair and direction); a post may wait for the collective before it, and whoever waits for
/// a message drives all that are under way. Every ticket is waited for, tested until it has ended, or cancelled; a post
/// after `close` is a `UsageError`. A failure surfaces from `test` or `wait` as a typed error, the same first cause on
/// every rank; after one that leaves the group dead, every later call throws the same.
class CROSSRANK_EXPORT Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Rank of the job for each rank of this group.
  [[nodiscard]] virtual std::span<int const> global_ranks() const noexcept = 0;
  /// Ranks of this group that stand on this node, ascending, this one included.
  [[nodiscard]] virtual std::span<int const> node_ranks() const noexcept = 0;
  /// The group's part of this node's shared memory, or null where there is none.
  [[nodiscard]] virtual std::shared_ptr<node::Group> node_group() const noexcept { return nullptr; }
  /// The vendor's own group of these ranks in this order, for the caller's calls to the vendor; nothing where there is
  /// none.
  [[nodiscard]] virtual std::optional<ProcessGroup> native_group() const noexcept { return {}; }

  [[nodiscard]] virtual Ticket post_barrier(Signature) = 0;
  /// `buffer` is read on `root` and written elsewhere; its size is the same on all ranks.
  [[nodiscard]] virtual Ticket post_broadcast(Signature, Sink buffer, int root) = 0;
  /// `mine` is `counts[rank()]` bytes; `out` receives all, one after the other in rank order.
  [[nodiscard]] virtual Ticket post_all_gatherv(Signature, Source mine, std::span<std::size_t const> counts,
                                                Sink out) = 0;
  /// Ends when `bytes` may be reused, which may need the receiver.
  [[nodiscard]] virtual Ticket post_send(Source bytes, int dst, std::uint32_t tag) = 0;
  /// Ends when the next message of `src` has arrived; another size or tag than announced here is a `MismatchError`.
  [[nodiscard]] virtual Ticket post_recv(Sink bytes, int src, std::uint32_t tag) = 0;

  /// Whether ranks that post different signatures get `MismatchError` before any data moves. Where not, the collective
  /// compares them first itself, at the level that asks for it.
  [[nodiscard]] virtual bool compares_signatures() const noexcept { return false; }

  // Optional verbs. Nothing: the generic algorithm over the verbs above runs in its place. Whether a backend answers
  // must depend only on what all ranks know alike. Counts are in bytes, whole elements where there is a reduction.

  /// Combines `in` of all ranks into `out` of all; both are as long, and `out` may be `in`.
  [[nodiscard]] virtual std::optional<Ticket> post_all_reduce(Signature, Source const& in, Sink const& out, Reduction);
  /// Combines `in` of all ranks into `out` of the root, which is empty elsewhere.
  [[nodiscard]] virtual std::optional<Ticket> post_reduce(Signature, Source const& in, Sink const& out, int root,
                                                          Reduction);
  /// Combines `in` of all ranks; part r of `counts[r]` bytes goes to rank r.
  [[nodiscard]] virtual std::optional<Ticket> post_reduce_scatterv(Signature, Source const& in,
                                                                   std::span<std::size_t const> counts, Sink const& out,
                                                                   Reduction);
  /// Joins `counts[r]` bytes of each rank r on `root`; `out` is empty elsewhere.
  [[nodiscard]] virtual std::optional<Ticket> post_gatherv(Signature, Source const& mine,
                                                           std::span<std::size_t const> counts, Sink const& out,
                                                           int root);
  /// Gives each rank r its `counts[r]` bytes of the root's `all`, which is empty elsewhere.
  [[nodiscard]] virtual std::optional<Ticket> post_scatterv(Signature, Source const& all,
                                                            std::span<std::size_t const> counts, Sink const& mine,
                                                            int root);
  /// Sends `send_counts[r]` bytes of `in` to each rank r and receives `recv_counts[r]` from it, all in rank order.
  [[nodiscard]] virtual std::optional<Ticket> post_all_to_allv(Signature, Source const& in,
                                                               std::span<std::size_t const> send_counts,
                                                               Sink const& out,
                                                               std::span<std::size_t const> recv_counts);

  /// Advances the operation; true when it has ended, after which the ticket is void. Never blocks.
  [[nodiscard]] virtual bool test(Ticket) = 0;
  /// Waits for the operation to end, asleep where the backend can; throws when `patience` runs out.
  virtual void wait(Ticket, Patience const& patience) = 0;
  /// Gives the operation up. On return its buffers are the caller's again. A collective given up before it has ended
  /// kills the group, and all ranks are told `why`, or that this rank cancelled it; a message that had not gone or come
  /// leaves no trace.
  virtual void cancel(Ticket, std::string_view why) noexcept = 0;
  void cancel(Ticket ticket) noexcept { cancel(ticket, {}); }

  /// Collective over this group: makes the group whose members are `members` (ranks of this group, in the order of
  /// their new ranks), the same list on each of its members; null where the list is empty. Blocks. The digest covers
  /// the lists of all ranks.
  [[nodiscard]] virtual std::shared_ptr<Transport> split(Signature, std::span<int const> members, std::string name,
                                                         Patience const& patience) = 0;
  /// Kills the group: every rank's present and later calls throw `PeerLostError` with `why`.
  virtual void abort(std::string_view why) noexcept = 0;
  /// Kills the group because others of it are dead or gone, as somebody saw who is nearer to them.
  virtual void report_lost(std::span<int const> members, std::string_view why) noexcept;
  /// Counts as progress of this rank for whoever waits for it.
  virtual void keep_alive() noexcept;
  /// This rank begins (1) or ends (-1) to run the caller's code in a range or guard: `user_limit` holds for it.
  virtual void enter_user_code(int change) noexcept;
  /// Calls `look` now and then, in the thread that waits, as long as somebody waits in this group.
  virtual void set_lookout(std::function<void()> look);
  /// Collective: meets the group once more and leaves it in order. Blocks; idempotent.
  virtual void close(Patience const& patience) = 0;
  /// Whether `close` has been called.
  [[nodiscard]] virtual bool is_closed() const noexcept = 0;
};

}  // namespace crossrank::spi
