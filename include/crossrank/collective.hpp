#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/element_range.hpp>
#include <crossrank/export.hpp>
#include <crossrank/rank_span.hpp>
#include <crossrank/reduce_op.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

namespace spi {
class Transport;
struct Patience;
}  // namespace spi
namespace algorithms {
struct Call;
}
namespace detail {
struct GroupState;
struct Flight;
class NamedCalls;
}  // namespace detail

/// The rank, in the group, that a collective goes out from or ends at.
struct Root {
  int root = 0;
};

/// Names a message between two ranks; both sides give the same.
struct Tag {
  std::uint32_t tag = 0;
};

/// The ranks at both ends of an exchange of messages.
struct Partners {
  int dst = 0;            ///< receives what this rank sends
  int src = 0;            ///< sends what this rank receives
  std::uint32_t tag = 0;  ///< of both messages
};

/// How a first dimension is divided among the ranks: entry r is how many rows are rank r's. The same on all ranks.
struct Rows {
  std::span<std::int64_t const> rows{};
  int root = 0;  ///< of gatherv and scatterv
};

/// How the first dimensions of an exchange are divided: entry r is how many rows go to rank r, and come from it.
struct ExchangedRows {
  std::span<std::int64_t const> send{};
  std::span<std::int64_t const> receive{};
};

/// How much ranks check that they agree about a call. The same on all ranks of a job.
enum class Check : std::uint8_t {
  off,         ///< own arguments only, as far as memory safety needs
  local,       ///< own arguments; backends that can compare calls at no cost do
  collective,  ///< before each call ranks compare verb, root, shapes, dtype and op: another is a `MismatchError` on
               ///< all; of a message the receiver compares shape and dtype
};

/// What the ranks of a job are.
enum class RanksAre : std::uint8_t { processes, threads };

struct ConnectOptions {
  std::string backend{};                       ///< "shm", "mpi", "composite", "fake", or empty: what
                                               ///< CROSSRANK_BACKEND says, else what serves the ranks
  std::chrono::milliseconds timeout{300'000};  ///< longest time without progress of a rank that is waited for;
                                               ///< CROSSRANK_TIMEOUT goes before it
  std::optional<std::chrono::milliseconds> connect_timeout{};  ///< for all ranks to come; CROSSRANK_CONNECT_TIMEOUT
                                                               ///< goes before it. Else 120 s, or CROSSRANK_TIMEOUT
                                                               ///< where that is shorter
  std::chrono::milliseconds user_limit{21'600'000};  ///< the same as `timeout` while that rank runs the caller's code
                                                     ///< in a range or guard; CROSSRANK_USER_LIMIT goes before it
  std::optional<int> rank{};                         ///< in place of the launcher's
  std::optional<int> world_size{};                   ///< in place of the launcher's
  std::string job_id{};                              ///< in place of the launcher's
  RanksAre ranks_are = RanksAre::processes;          ///< threads: each calls `connect` with its own `rank`
  std::optional<std::uint64_t>
      arena_cap{};  ///< bytes that all arenas of a node may hold; CROSSRANK_ARENA_CAP, else half the memory
  std::optional<Check> check{};  ///< else `local`; CROSSRANK_CHECK goes before it
};

/// A call under way: what the non-blocking forms return. Holds the tensors of the call.
///
/// Local. What has been started goes on whenever the thread that did waits for anything of its peers, in whatever group
/// or queue, and when it is tested or waited for.
///
/// Keep a request until `wait()` returns or `test()` is true. Dropping the request of a collective that has not ended
/// kills the group: every rank gets a `PeerLostError` that names this rank and the call whose request was dropped.
/// Dropping that of a message gives the message up and leaves the group alive.
class CROSSRANK_EXPORT Request {
 public:
  /// No call: it has ended.
  Request() noexcept;
  ~Request();
  Request(Request&& other) noexcept;
  Request& operator=(Request&& other) noexcept;
  Request(Request const&) = delete;
  Request& operator=(Request const&) = delete;

  /// Advances the call; true once it has ended. Never blocks. Throws what it failed with, once.
  [[nodiscard]] bool test();
  /// Waits for the call to end, for as long as the group's calls may wait. Throws what it failed with, once.
  void wait();
  /// Waits at most `limit`; false when the call is still under way then, which does the group no harm.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit);
  /// Gives the call up: its tensors are the caller's again. A collective given up kills the group; a message that had
  /// not gone or come leaves no trace.
  void cancel() noexcept;

 private:
  friend class Collective;
  Request(std::shared_ptr<detail::GroupState> group, std::shared_ptr<detail::Flight> flight) noexcept;
  void drop() noexcept;
  void give_up(bool dropped) noexcept;

  std::shared_ptr<detail::GroupState> group_{};
  std::shared_ptr<detail::Flight> flight_{};
};

/// A group of ranks and what they do together: a handle, cheap to copy, all copies name the same group.
///
/// Ranks (`rank()`, `root`, `src`, `dst`) count inside the group; `global_rank()` and `ranks()` are those of the job.
/// All ranks of the group call the same members in the same order, from one thread at a time. Every wait has a
/// deadline, and a rank that dies, stops or disagrees ends it on all ranks with the same error: `PeerLostError`,
/// `TimeoutError` or `MismatchError`, after which the group is dead. Tensors are on the CPU; others are a `UsageError`.
///
/// Reductions combine in rank order, ((r0 op r1) op r2) ..., on every backend: results are the same bit for bit.
/// Every collective has a form that returns at once, its name behind an i; ranks start those in the same order as all
/// others, and leave the tensors alone until they have ended. `gather`, `scatter` and their kin take `Tensor{}` where a
/// rank neither gives nor gets.
///
/// In place of tensors every call takes elements of the caller's: a vector, an array or a span of numbers, which counts
/// as a tensor of one dimension and is checked as such. Those with numbers of rows count elements. Ranks may give a
/// tensor here and elements there as long as dtypes and shapes agree. An empty span stands where a rank neither gives
/// nor gets.
class CROSSRANK_EXPORT Collective {
 public:
  /// No group. Every member but `connected()` is a `UsageError`.
  Collective() noexcept = default;

  [[nodiscard]] bool connected() const noexcept { return state_ != nullptr; }
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] int global_rank() const;
  /// Ranks of the job that form the group, in the order of their ranks here.
  [[nodiscard]] RankSpan ranks() const;
  /// Place of this rank among the ranks of the job on its node, and how many those are. The same in every group of the
  /// job, so that it can select a device: rank 2 of the group {0, 2} on one node has local rank 2.
  [[nodiscard]] int local_rank() const;
  [[nodiscard]] int local_world_size() const;
  /// Place of this rank among the ranks of the group on its node, and how many those are.
  [[nodiscard]] int local_rank_in_group() const;
  [[nodiscard]] int local_size_in_group() const;
  /// First rank of the group.
  [[nodiscard]] bool is_master() const;
  /// First rank of the group on its node: every group has one on each of its nodes.
  [[nodiscard]] bool is_local_master() const;
  /// "fake", "shm", "mpi" or "composite".
  [[nodiscard]] std::string_view backend() const;
  [[nodiscard]] std::string const& name() const;

  /// Returns once all ranks have called it. Collective; one meeting, no copy.
  void barrier() const;
  [[nodiscard]] Request ibarrier() const;
  /// Gives every rank the root's bytes. Collective; shapes and dtypes must agree. One meeting, at most two copies; long
  /// ones in pieces, one meeting each.
  void broadcast(Tensor& tensor, Root root = {}) const;
  [[nodiscard]] Request ibroadcast(Tensor& tensor, Root root = {}) const;
  template <MutableElementRange R>
  void broadcast(R&& values, Root root = {}) const;
  template <MutableElementRange R>
  [[nodiscard]] Request ibroadcast(R&& values, Root root = {}) const;

  /// Combines the values of all ranks into the same result on each. Collective; see `ReduceOp` for dtypes and ops,
  /// `UsageError` for those that make no sense. Short values: one meeting; long ones: each rank reduces a slice.
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Request iall_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange R>
  void all_reduce(R&& values, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange R>
  [[nodiscard]] Request iall_reduce(R&& values, ReduceOp op = ReduceOp::sum) const;
  /// The same for one value: takes this rank's and returns the result. Meets an `all_reduce` of one element.
  template <Element T>
  [[nodiscard]] T all_reduce_value(T value, ReduceOp op = ReduceOp::sum) const;
  /// The same into the root's tensor alone; the others' stay as they are.
  void reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum, Root root = {}) const;
  [[nodiscard]] Request ireduce(Tensor& tensor, ReduceOp op = ReduceOp::sum, Root root = {}) const;
  template <MutableElementRange R>
  void reduce(R&& values, ReduceOp op = ReduceOp::sum, Root root = {}) const;
  template <MutableElementRange R>
  [[nodiscard]] Request ireduce(R&& values, ReduceOp op = ReduceOp::sum, Root root = {}) const;
  /// Combines the values of all ranks and gives each its part: `in` is `[world_size, *out.shape]`, or any shape with as
  /// many elements.
  void reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Request ireduce_scatter(Tensor& out, Tensor const& in, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void reduce_scatter(Out&& out, In&& in, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request ireduce_scatter(Out&& out, In&& in, ReduceOp op = ReduceOp::sum) const;
  /// The same with parts of `rows.rows` rows of `in`.
  void reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op = ReduceOp::sum) const;
  [[nodiscard]] Request ireduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void reduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op = ReduceOp::sum) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request ireduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op = ReduceOp::sum) const;

  /// Joins the tensors of all ranks along a new first dimension: `out` is `[world_size, *in.shape]`, or any shape with
  /// as many elements. Collective; one meeting, at most two copies of each byte; long ones in pieces. `in` may be this
  /// rank's part of `out`, here and in all gathers, but stand nowhere else in it; scatters the other way round.
  void all_gather(Tensor& out, Tensor const& in) const;
  [[nodiscard]] Request iall_gather(Tensor& out, Tensor const& in) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_gather(Out&& out, In&& in) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iall_gather(Out&& out, In&& in) const;
  /// Joins tensors of `rows.rows` rows along their first dimension.
  void all_gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  [[nodiscard]] Request iall_gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_gatherv(Out&& out, In&& in, Rows rows) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iall_gatherv(Out&& out, In&& in, Rows rows) const;
  /// The bytes of all ranks, one after the other in rank order; sizes may differ. Collective; two meetings.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gatherv(std::span<std::byte const> mine) const;
  /// As all_gather and all_gatherv, into the root's `out` alone.
  void gather(Tensor& out, Tensor const& in, Root root = {}) const;
  [[nodiscard]] Request igather(Tensor& out, Tensor const& in, Root root = {}) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void gather(Out&& out, In&& in, Root root = {}) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request igather(Out&& out, In&& in, Root root = {}) const;
  void gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  [[nodiscard]] Request igatherv(Tensor& out, Tensor const& in, Rows rows) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void gatherv(Out&& out, In&& in, Rows rows) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request igatherv(Out&& out, In&& in, Rows rows) const;
  /// The inverse: each rank gets its part of the root's `in`, equal ones or those of `rows.rows` rows.
  void scatter(Tensor& out, Tensor const& in, Root root = {}) const;
  [[nodiscard]] Request iscatter(Tensor& out, Tensor const& in, Root root = {}) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void scatter(Out&& out, In&& in, Root root = {}) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iscatter(Out&& out, In&& in, Root root = {}) const;
  void scatterv(Tensor& out, Tensor const& in, Rows rows) const;
  [[nodiscard]] Request iscatterv(Tensor& out, Tensor const& in, Rows rows) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void scatterv(Out&& out, In&& in, Rows rows) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iscatterv(Out&& out, In&& in, Rows rows) const;
  /// Part r of `in` goes to rank r, whose part of `out` comes from there; parts are equal, or of the rows given, which
  /// both sides must give alike: `MismatchError`. The tensors must not overlap.
  void all_to_all(Tensor& out, Tensor const& in) const;
  [[nodiscard]] Request iall_to_all(Tensor& out, Tensor const& in) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_to_all(Out&& out, In&& in) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iall_to_all(Out&& out, In&& in) const;
  void all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const;
  [[nodiscard]] Request iall_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const;
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_to_allv(Out&& out, In&& in, ExchangedRows rows) const;
  template <MutableElementRange Out, LastingElementRangeLike<Out> In>
  [[nodiscard]] Request iall_to_allv(Out&& out, In&& in, ExchangedRows rows) const;

  /// Sends a tensor's bytes. Returns when they may be reused, which needs the receiver once eight messages wait for it.
  void send(Tensor const& tensor, int dst, Tag tag = {}) const;
  [[nodiscard]] Request isend(Tensor const& tensor, int dst, Tag tag = {}) const;
  template <ElementRange R>
  void send(R&& values, int dst, Tag tag = {}) const;
  template <LastingElementRange R>
  [[nodiscard]] Request isend(R&& values, int dst, Tag tag = {}) const;
  /// Receives into `tensor` the next message of `src`. When its size or tag is another, it is gone and this rank alone
  /// gets a `MismatchError`, and the group lives on.
  void recv(Tensor& tensor, int src, Tag tag = {}) const;
  [[nodiscard]] Request irecv(Tensor& tensor, int src, Tag tag = {}) const;
  template <MutableElementRange R>
  void recv(R&& values, int src, Tag tag = {}) const;
  template <MutableElementRange R>
  [[nodiscard]] Request irecv(R&& values, int src, Tag tag = {}) const;
  /// Both at once, so that ranks may exchange in a circle. The tensors must not overlap.
  void sendrecv(Tensor& in, Tensor const& out, Partners partners) const;
  template <MutableElementRange In, ElementRange Out>
  void sendrecv(In&& in, Out&& out, Partners partners) const;

  // Objects: scalars, strings, `Json`, and whatever cereal serializes. Defined and described in
  // <crossrank/objects.hpp>.
  template <class T>
  [[nodiscard]] T broadcast_object(T value, Root root = {}) const;
  template <class T>
  void broadcast_objects(std::vector<T>& values, Root root = {}) const;
  template <class T>
  [[nodiscard]] std::vector<T> all_gather_objects(T const& mine) const;
  template <class T>
  [[nodiscard]] std::vector<T> all_gather_object(T const& mine) const;
  template <class T>
  [[nodiscard]] std::vector<T> gather_objects(T const& mine, Root root = {}) const;
  template <class T>
  [[nodiscard]] T scatter_objects(std::vector<T> const& all, Root root = {}) const;
  template <class T>
  void send_object(T const& value, int dst) const;
  template <class T>
  [[nodiscard]] T recv_object(int src) const;

  /// Makes the groups whose ranks (of this group) are listed, and returns the one that holds this rank, with ranks in
  /// the order of its list. Collective over this group; all ranks give the same lists. A rank in no list gets an empty
  /// handle. `UsageError` for a rank that is unknown or listed twice; `UnavailableError` on all ranks when their node
  /// has as many groups and queues as it has room for: 1,024 for up to some hundred ranks, 256 for many. A group whose
  /// handles have gone on all its ranks makes room.
  [[nodiscard]] Collective split(std::vector<std::vector<int>> const& groups, std::string name = {}) const;
  [[nodiscard]] Collective split(std::initializer_list<std::initializer_list<int>> groups) const;
  /// The same by colour: ranks with the same one form a group, ordered by `key`, then by rank; a negative colour is
  /// none.
  [[nodiscard]] Collective split_by(int color, int key = 0) const;

  /// Kills the group: every rank's present and later calls throw `PeerLostError` with `why`. Local; never throws.
  void abort(std::string_view why) const noexcept;
  /// Tells whoever waits for this rank that it is alive and at work. Local; one store.
  void keep_alive() const noexcept;
  /// Meets the group once more and leaves it. Collective; idempotent. Later calls are a `UsageError`. A handle that is
  /// dropped without it leaves too, and whoever still waits for this rank is told.
  void close();

  /// For backends and workspaces.
  [[nodiscard]] std::shared_ptr<spi::Transport> const& transport() const;
  [[nodiscard]] spi::Patience const& patience() const;
  /// Until it is called again with null, every collective call on the group is a `UsageError` that says `why`.
  void refuse_calls(char const* why) const noexcept;
  /// Holds the group for one call: a second one at the same time is a `UsageError`.
  class CROSSRANK_EXPORT Turn {
   public:
    Turn(Collective const& collective, char const* operation);
    ~Turn();
    Turn(Turn const&) = delete;
    Turn& operator=(Turn const&) = delete;

   private:
    detail::GroupState* state_;
  };

 private:
  explicit Collective(std::shared_ptr<detail::GroupState> state) noexcept : state_(std::move(state)) {}
  friend class detail::NamedCalls;
  friend Collective connect(ConnectOptions options);
  friend Collective make_collective(std::shared_ptr<spi::Transport> transport, spi::Patience const& patience,
                                    Check check);

  [[nodiscard]] detail::GroupState& state(char const* operation) const;
  void run(algorithms::Call&& call) const;
  [[nodiscard]] Request start(algorithms::Call&& call) const;
  void all_reduce_bytes(std::span<std::byte> values, Dtype dtype, ReduceOp op) const;

  std::shared_ptr<detail::GroupState> state_{};
};

/// Wraps a transport; for backends and tests.
[[nodiscard]] CROSSRANK_EXPORT Collective make_collective(std::shared_ptr<spi::Transport> transport,
                                                          spi::Patience const& patience, Check check = Check::local);

/// Joins the job that the launcher announced: a group of all its ranks.
///
/// Collective over the job. Reads RANK, WORLD_SIZE and a job id, as `crossrank run`, torchrun, Slurm and Open MPI give
/// them; without a launcher the job is this process alone, on the backend "fake". When more than one rank was announced
/// and no backend can serve them, `UnavailableError` says what was tried: it never falls back to "fake".
///
/// All ranks of a node get the same error when one of them cannot join. Ranks that do not come within `connect_timeout`
/// are named by a `TimeoutError`, one that ends meanwhile by a `PeerLostError`; under `crossrank run` one that ended
/// before it called this too, at once. A rank that comes twice gets a `UsageError`. A second call returns the same job.
/// Ranks that are threads need no job id: they find each other in their process.
[[nodiscard]] CROSSRANK_EXPORT Collective connect(ConnectOptions options = {});

}  // namespace crossrank

#include <crossrank/collective_elements.hpp>
