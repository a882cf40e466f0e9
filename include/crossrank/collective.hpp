#pragma once
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/collective/arguments.hpp>
#include <crossrank/collective/check_level.hpp>
#include <crossrank/collective/connect_options.hpp>
#include <crossrank/collective/rank_span.hpp>
#include <crossrank/collective/reduce_op.hpp>
#include <crossrank/collective/request.hpp>
#include <crossrank/export.hpp>
#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/element_range.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

namespace spi {
class Transport;
struct TimeoutPolicy;
}  // namespace spi
namespace algorithms {
struct Call;
}
namespace detail {
struct GroupState;
class NamedCalls;
}  // namespace detail

/// A handle to a group of ranks. Cheap to copy; all copies name the same group.
///
/// `rank()`, `root`, `src` and `dst` are ranks in the group; `global_rank()` and `ranks()` are ranks of the job.
///
/// All ranks of the group make the same calls in the same order, from one thread at a time. Different groups may be
/// used from different threads at the same time; where NCCL carries their calls, all ranks must still start these in
/// one order, because a GPU runs them one after the other. Every wait has a deadline. When a rank dies, stops or makes
/// a different call, all ranks get the same error: `PeerLostError`, `TimeoutError` or `MismatchError`. The group is
/// dead after that. Wrong arguments are a `UsageError`, which is thrown before anything is sent; the group stays
/// usable.
///
/// All tensors of a call are on the CPU, or all are on one GPU; a fused call is no exception. Reductions combine in
/// rank order, ((r0 op r1) op r2) and so on, with the same bits on every backend; those that NCCL carries differ, see
/// below. `gather`, `scatter` and their variants accept `Tensor{}` for a tensor that the rank neither sends nor
/// receives.
///
/// **GPU tensors** of collectives are sent by NCCL if all ranks of the group have the same NCCL and a GPU of their own,
/// else through host memory. Messages between ranks of one host stay on their GPUs if these can open each other's
/// memory; other messages go through host memory. `spi::add_device_transport` adds other libraries than NCCL. Results
/// are in the order of the current stream. With NCCL the host does not wait for the GPU; unless `CheckLevel` is `off`,
/// it waits until all ranks have made the call. NCCL reduces in an order of its own, unless the caller asks for
/// `ReduceOrder::rank`. Reductions that NCCL lacks, and min and max of floating-point tensors, are in rank order too.
/// The first collective on GPU tensors makes the choice for the group, and blocks until all ranks have called it.
/// `CROSSRANK_DEVICE` forces either. If it forces NCCL and NCCL cannot be used, all ranks get an `UnavailableError`.
///
/// Costs are those of the "shm" backend. A *barrier round* is one exchange of arrival flags between all ranks.
///
/// **Non-blocking variants** begin with `i` (`ibroadcast`) and return a `Request`. Ranks start them in the same order
/// as all other calls. The tensors belong to the call until the request has finished.
///
/// **Fused variants** take several tensors and combine or gather all of them in one operation, which costs as many
/// rounds as one tensor of their total size. Tensors that do not follow each other in memory are copied through a
/// buffer of that size. `UsageError` for an empty list. All ranks pass the same number of tensors, with the same
/// shapes.
///
/// **Variants for elements** take a vector, array or span of numbers in place of a tensor. The call treats it as a
/// tensor of one dimension, so that row counts are element counts. One rank may pass a tensor and another elements, as
/// long as dtypes and shapes agree. A rank that neither sends nor receives passes an empty span.
class CROSSRANK_EXPORT Collective {
 public:
  /// Makes a handle without a group. `close`, `abort`, `keep_alive` and `refuse_calls` then do nothing; every other
  /// member except `connected()` throws a `UsageError`.
  Collective() noexcept = default;

  /// Returns whether the handle refers to a group. Local.
  [[nodiscard]] bool connected() const noexcept { return state_ != nullptr; }
  /// Returns this rank's number in the group, from 0. Local.
  [[nodiscard]] int rank() const;
  /// Returns the number of ranks in the group. Local.
  [[nodiscard]] int world_size() const;
  /// Returns this rank's number in the job. Local.
  [[nodiscard]] int global_rank() const;
  /// Returns the job ranks of the members, in group order. Local.
  [[nodiscard]] RankSpan ranks() const;
  /// Returns this rank's place among the job's ranks on its node. Local.
  ///
  /// It is the same in every group of the job, so it can select a device: on a node with ranks 0 to 3, rank 2 of the
  /// job has local rank 2 in every group.
  [[nodiscard]] int local_rank() const;
  /// Returns the number of the job's ranks on this node. Local.
  [[nodiscard]] int local_world_size() const;
  /// Returns this rank's place among the group's ranks on its node. Local.
  [[nodiscard]] int local_rank_in_group() const;
  /// Returns the number of the group's ranks on this node. Local.
  [[nodiscard]] int local_size_in_group() const;
  /// Returns whether this is the first rank of the group. Local.
  [[nodiscard]] bool is_master() const;
  /// Returns whether this is the first rank of the group on its node. Local.
  [[nodiscard]] bool is_local_master() const;
  /// Returns the backend's name: "fake", "shm", "mpi", "composite" or that of a plugin. Local.
  [[nodiscard]] std::string_view backend() const;
  /// Returns what carries the group's collectives on GPU tensors: "nccl" or the name of another device transport, or
  /// "staged" for the backend with copies through host memory. "none" until the first such collective, which decides.
  /// Local.
  [[nodiscard]] std::string_view device_backend() const;
  /// Returns the group's name, which errors and `crossrank inspect` show. Local.
  [[nodiscard]] std::string const& name() const;

  /// Blocks until all ranks have called `barrier`. Collective; one barrier round, no copy. Follows `MPI_Barrier`.
  void barrier() const;
  /// Starts a `barrier` and returns at once.
  [[nodiscard]] Request ibarrier() const;

  /// Copies the root's bytes into `tensor` on every other rank.
  ///
  /// Collective; one barrier round and at most two copies of each byte. A long tensor goes in pieces, with one round
  /// for each. Shapes and dtypes are the same on all ranks. Follows `MPI_Bcast`.
  void broadcast(Tensor& tensor, Root root = {}) const;
  /// Starts a `broadcast` and returns at once.
  [[nodiscard]] Request ibroadcast(Tensor& tensor, Root root = {}) const;
  /// Broadcasts the caller's elements.
  template <MutableElementRange R>
  void broadcast(R&& values, Root root = {}) const;
  /// Starts a `broadcast` of the caller's elements and returns at once.
  template <MutableElementRange R>
  [[nodiscard]] Request ibroadcast(R&& values, Root root = {}) const;

  /// Replaces `tensor` on every rank by the combination of all ranks' tensors.
  ///
  /// Collective; one barrier round for a short tensor. For a long tensor, each rank reduces one slice. Shapes and
  /// dtypes are the same on all ranks. `ReduceOp` lists the dtypes of each op; another dtype is a `UsageError`. `order`
  /// matters on GPUs only. Follows `MPI_Allreduce`.
  void all_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum, ReduceOrder order = ReduceOrder::any) const;
  /// Starts an `all_reduce` and returns at once.
  [[nodiscard]] Request iall_reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum,
                                    ReduceOrder order = ReduceOrder::any) const;
  /// Starts a fused `all_reduce` of tensors of one dtype and returns at once.
  [[nodiscard]] Request iall_reduce(std::span<Tensor> tensors, ReduceOp op = ReduceOp::sum,
                                    ReduceOrder order = ReduceOrder::any) const;
  /// Combines the caller's elements on every rank.
  template <MutableElementRange R>
  void all_reduce(R&& values, ReduceOp op = ReduceOp::sum) const;
  /// Starts an `all_reduce` of the caller's elements and returns at once.
  template <MutableElementRange R>
  [[nodiscard]] Request iall_reduce(R&& values, ReduceOp op = ReduceOp::sum) const;
  /// Returns the combination of all ranks' values. Collective; other ranks may call `all_reduce` with one element.
  template <Element T>
  [[nodiscard]] T all_reduce_value(T value, ReduceOp op = ReduceOp::sum) const;

  /// Replaces the root's tensor by the combination of all ranks' tensors. The other tensors do not change.
  ///
  /// Collective; dtypes, shapes and errors as for `all_reduce`. Follows `MPI_Reduce`.
  void reduce(Tensor& tensor, ReduceOp op = ReduceOp::sum, Root root = {}, ReduceOrder order = ReduceOrder::any) const;
  /// Starts a `reduce` and returns at once.
  [[nodiscard]] Request ireduce(Tensor& tensor, ReduceOp op = ReduceOp::sum, Root root = {},
                                ReduceOrder order = ReduceOrder::any) const;
  /// Combines the caller's elements on the root.
  template <MutableElementRange R>
  void reduce(R&& values, ReduceOp op = ReduceOp::sum, Root root = {}) const;
  /// Starts a `reduce` of the caller's elements and returns at once.
  template <MutableElementRange R>
  [[nodiscard]] Request ireduce(R&& values, ReduceOp op = ReduceOp::sum, Root root = {}) const;

  /// Combines `in` over all ranks and gives rank r the r-th of `world_size` equal parts in `out`.
  ///
  /// Collective; dtypes and errors as for `all_reduce`. `in` has the shape `[world_size, *out.shape]`, or any shape
  /// with as many elements. Follows `MPI_Reduce_scatter_block`.
  void reduce_scatter(Tensor& out, Tensor const& in, ReduceOp op = ReduceOp::sum,
                      ReduceOrder order = ReduceOrder::any) const;
  /// Starts a `reduce_scatter` and returns at once.
  [[nodiscard]] Request ireduce_scatter(Tensor& out, Tensor const& in, ReduceOp op = ReduceOp::sum,
                                        ReduceOrder order = ReduceOrder::any) const;
  /// Starts a fused `reduce_scatter` of tensors of one dtype and returns at once: `outs[i]` receives a part of
  /// `ins[i]`.
  [[nodiscard]] Request ireduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins,
                                        ReduceOp op = ReduceOp::sum, ReduceOrder order = ReduceOrder::any) const;
  /// Combines the caller's elements and scatters equal parts of the result.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void reduce_scatter(Out&& out, In&& in, ReduceOp op = ReduceOp::sum) const;
  /// Starts a `reduce_scatter` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request ireduce_scatter(Out&& out, In&& in, ReduceOp op = ReduceOp::sum) const;

  /// Combines `in` over all ranks and gives rank r the next `rows.rows[r]` rows of the result in `out`.
  ///
  /// Collective; dtypes and errors as for `all_reduce`. Follows `MPI_Reduce_scatter`.
  void reduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op = ReduceOp::sum,
                       ReduceOrder order = ReduceOrder::any) const;
  /// Starts a `reduce_scatterv` and returns at once.
  [[nodiscard]] Request ireduce_scatterv(Tensor& out, Tensor const& in, Rows rows, ReduceOp op = ReduceOp::sum,
                                         ReduceOrder order = ReduceOrder::any) const;
  /// Combines the caller's elements and scatters parts of `rows.rows` elements.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void reduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op = ReduceOp::sum) const;
  /// Starts a `reduce_scatterv` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request ireduce_scatterv(Out&& out, In&& in, Rows rows, ReduceOp op = ReduceOp::sum) const;

  /// Joins the tensors of all ranks in `out` on every rank, along a new first dimension.
  ///
  /// Collective; one barrier round and at most two copies of each byte. A long tensor goes in pieces, with one round
  /// for each. `out` has the shape `[world_size, *in.shape]`, or any shape with as many elements. `in` may be this
  /// rank's own part of `out`, and must not overlap another part of it. Follows `MPI_Allgather`.
  void all_gather(Tensor& out, Tensor const& in) const;
  /// Starts an `all_gather` and returns at once.
  [[nodiscard]] Request iall_gather(Tensor& out, Tensor const& in) const;
  /// Starts a fused `all_gather` and returns at once: `outs[i]` receives the i-th tensors of all ranks. Dtypes may
  /// differ between the tensors of a rank.
  [[nodiscard]] Request iall_gather(std::span<Tensor> outs, std::span<Tensor const> ins) const;
  /// Joins the caller's elements on every rank.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_gather(Out&& out, In&& in) const;
  /// Starts an `all_gather` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iall_gather(Out&& out, In&& in) const;

  /// Joins tensors of different lengths on every rank, along their first dimension.
  ///
  /// Collective; costs and overlap as for `all_gather`. `in` has `rows.rows[rank()]` rows, `out` the sum of all rows;
  /// the other dimensions are the same everywhere. Follows `MPI_Allgatherv`.
  void all_gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Starts an `all_gatherv` and returns at once.
  [[nodiscard]] Request iall_gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Joins `rows.rows` of the caller's elements on every rank.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_gatherv(Out&& out, In&& in, Rows rows) const;
  /// Starts an `all_gatherv` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iall_gatherv(Out&& out, In&& in, Rows rows) const;
  /// Returns the bytes of every rank, in rank order, on every rank. Sizes may differ; the ranks exchange them.
  /// Collective; two barrier rounds.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gatherv(std::span<std::byte const> mine) const;

  /// Joins the tensors of all ranks in the root's `out`, along a new first dimension.
  ///
  /// Collective; costs, shapes and overlap as for `all_gather`. The other ranks may pass `Tensor{}` as `out`. Follows
  /// `MPI_Gather`.
  void gather(Tensor& out, Tensor const& in, Root root = {}) const;
  /// Starts a `gather` and returns at once.
  [[nodiscard]] Request igather(Tensor& out, Tensor const& in, Root root = {}) const;
  /// Joins the caller's elements on the root.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void gather(Out&& out, In&& in, Root root = {}) const;
  /// Starts a `gather` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request igather(Out&& out, In&& in, Root root = {}) const;

  /// Joins tensors of different lengths in the root's `out`, along their first dimension.
  ///
  /// Collective; costs, shapes and overlap as for `all_gatherv`. `rows.root` receives; the other ranks may pass
  /// `Tensor{}` as `out`. Follows `MPI_Gatherv`.
  void gatherv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Starts a `gatherv` and returns at once.
  [[nodiscard]] Request igatherv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Joins `rows.rows` of the caller's elements on the root.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void gatherv(Out&& out, In&& in, Rows rows) const;
  /// Starts a `gatherv` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request igatherv(Out&& out, In&& in, Rows rows) const;

  /// Gives rank r the r-th of `world_size` equal parts of the root's `in`.
  ///
  /// Collective; the inverse of `gather`. `in` has the shape `[world_size, *out.shape]`, or any shape with as many
  /// elements; ranks other than the root may pass `Tensor{}`. On the root `out` may be its own part of `in`, and must
  /// not overlap another part of it. Follows `MPI_Scatter`.
  void scatter(Tensor& out, Tensor const& in, Root root = {}) const;
  /// Starts a `scatter` and returns at once.
  [[nodiscard]] Request iscatter(Tensor& out, Tensor const& in, Root root = {}) const;
  /// Gives each rank an equal part of the root's elements.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void scatter(Out&& out, In&& in, Root root = {}) const;
  /// Starts a `scatter` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iscatter(Out&& out, In&& in, Root root = {}) const;

  /// Gives rank r the next `rows.rows[r]` rows of the root's `in`.
  ///
  /// Collective; the inverse of `gatherv`. `rows.root` sends; the other ranks may pass `Tensor{}` as `in`. Overlap as
  /// for `scatter`. Follows `MPI_Scatterv`.
  void scatterv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Starts a `scatterv` and returns at once.
  [[nodiscard]] Request iscatterv(Tensor& out, Tensor const& in, Rows rows) const;
  /// Gives each rank `rows.rows` of the root's elements.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void scatterv(Out&& out, In&& in, Rows rows) const;
  /// Starts a `scatterv` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iscatterv(Out&& out, In&& in, Rows rows) const;

  /// Sends the r-th of `world_size` equal parts of `in` to rank r, and receives rank r's part into the r-th of `out`.
  ///
  /// Collective. `in` and `out` have as many elements, the same on all ranks, and must not overlap. Follows
  /// `MPI_Alltoall`.
  void all_to_all(Tensor& out, Tensor const& in) const;
  /// Starts an `all_to_all` and returns at once.
  [[nodiscard]] Request iall_to_all(Tensor& out, Tensor const& in) const;
  /// Exchanges equal parts of the caller's elements.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_to_all(Out&& out, In&& in) const;
  /// Starts an `all_to_all` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iall_to_all(Out&& out, In&& in) const;

  /// Sends `rows.send[r]` rows of `in` to rank r and receives `rows.receive[r]` rows of `out` from it.
  ///
  /// Collective. `MismatchError` when a rank sends another number of rows than its peer expects. The tensors must not
  /// overlap. Follows `MPI_Alltoallv`.
  void all_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const;
  /// Starts an `all_to_allv` and returns at once.
  [[nodiscard]] Request iall_to_allv(Tensor& out, Tensor const& in, ExchangedRows rows) const;
  /// Exchanges parts of the caller's elements, with the sizes in `rows`.
  template <MutableElementRange Out, ElementRangeLike<Out> In>
  void all_to_allv(Out&& out, In&& in, ExchangedRows rows) const;
  /// Starts an `all_to_allv` of the caller's elements and returns at once.
  template <MutableElementRange Out, BorrowedElementRangeLike<Out> In>
  [[nodiscard]] Request iall_to_allv(Out&& out, In&& in, ExchangedRows rows) const;

  /// Sends a tensor's bytes to rank `dst`. Returns when the caller may change the tensor.
  ///
  /// Involves only the two ranks. Blocks for the receiver only when eight messages already wait for it, or when waiting
  /// messages fill this rank's shared memory. Follows `MPI_Send`. Without memory for the message, `UnavailableError`
  /// here and `RemoteError` on the receiver.
  void send(Tensor const& tensor, int dst, Tag tag = {}) const;
  /// Starts a `send` and returns at once.
  [[nodiscard]] Request isend(Tensor const& tensor, int dst, Tag tag = {}) const;
  /// Sends the caller's elements.
  template <ElementRange R>
  void send(R&& values, int dst, Tag tag = {}) const;
  /// Starts a `send` of the caller's elements and returns at once.
  template <BorrowedElementRange R>
  [[nodiscard]] Request isend(R&& values, int dst, Tag tag = {}) const;

  /// Receives the next message from rank `src` into `tensor`.
  ///
  /// Involves only the two ranks. A message with another size or tag is dropped; this rank gets a `MismatchError`, and
  /// the group stays usable. Follows `MPI_Recv`.
  void recv(Tensor& tensor, int src, Tag tag = {}) const;
  /// Starts a `recv` and returns at once.
  [[nodiscard]] Request irecv(Tensor& tensor, int src, Tag tag = {}) const;
  /// Receives into the caller's elements.
  template <MutableElementRange R>
  void recv(R&& values, int src, Tag tag = {}) const;
  /// Starts a `recv` into the caller's elements and returns at once.
  template <MutableElementRange R>
  [[nodiscard]] Request irecv(R&& values, int src, Tag tag = {}) const;

  /// Receives the next message from any other rank into `tensor` and returns the sender's rank in the group.
  ///
  /// If messages of several ranks wait, the ranks take turns, so a waiting message is received after at most one
  /// message of every other rank. Messages of one rank stay in order. If several receives match a message, the one that
  /// was called first gets it. Errors for another size or tag are as for `recv`, so use another group for messages of
  /// another kind.
  ///
  /// A message that has arrived is received even if its sender has died or left. Otherwise the death of any rank of the
  /// group is a `PeerLostError`, and so is the departure of all other ranks. `TimeoutError` when no other rank has
  /// made progress for the timeout. Follows `MPI_Recv` with `MPI_ANY_SOURCE`.
  int recv_any(Tensor& tensor, Tag tag = {}) const;
  /// Starts a `recv_any` and returns at once. `Request::source` names the sender afterwards.
  [[nodiscard]] Request irecv_any(Tensor& tensor, Tag tag = {}) const;
  /// Receives from any other rank into the caller's elements.
  template <MutableElementRange R>
  int recv_any(R&& values, Tag tag = {}) const;
  /// Starts a `recv_any` into the caller's elements and returns at once.
  template <MutableElementRange R>
  [[nodiscard]] Request irecv_any(R&& values, Tag tag = {}) const;

  /// Receives `out` from one rank and sends `in` to another at the same time, so that ranks can shift data in a circle.
  ///
  /// Involves only these ranks. The tensors must not overlap. Errors as for `recv`. Follows `MPI_Sendrecv`.
  void sendrecv(Tensor& out, Tensor const& in, Partners partners) const;
  /// Receives and sends the caller's elements at the same time.
  template <MutableElementRange Out, ElementRange In>
  void sendrecv(Out&& out, In&& in, Partners partners) const;

  // Objects: scalars, strings, `Json`, and every type that cereal can serialize. <crossrank/objects.hpp> defines and
  // describes these members.
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

  /// Makes the listed groups and returns the one that holds this rank.
  ///
  /// Collective over this group. The lists hold ranks of this group and are the same on all ranks; their order is the
  /// order in the new group. A rank that no list contains gets a handle without a group. `UsageError` for an unknown or
  /// repeated rank; `UnavailableError` on all ranks when their node has no space for another group. A node holds 1,024
  /// groups and queues with up to 99 ranks, 256 with 204 or more. Dropping all handles of a group makes space.
  /// Follows `dist.new_group` of PyTorch.
  [[nodiscard]] Collective split(std::vector<std::vector<int>> const& groups, std::string name = {}) const;
  /// Makes unnamed groups from a braced list: `world.split({{0, 1}, {2, 3}})`.
  [[nodiscard]] Collective split(std::initializer_list<std::initializer_list<int>> groups) const;
  /// Makes one group of all ranks with the same `color`, ordered by `key`, then by rank.
  ///
  /// Collective over this group; errors as for `split`. A rank with a negative color gets a handle without a group.
  /// Follows `MPI_Comm_split`.
  [[nodiscard]] Collective split_by(int color, int key = 0) const;

  /// Kills the group: present and later calls of every rank throw a `PeerLostError` that names this rank and says
  /// `why`. Local; never throws.
  void abort(std::string_view why) const noexcept;
  /// Returns the ranks that have died or left, as far as this rank knows. For a program that waits for something
  /// other than a call of the group. Local; any thread; never blocks. `UsageError` in a forked child.
  /// Follows `MPIX_Comm_get_failed`.
  [[nodiscard]] std::vector<int> failed_ranks() const;
  /// Tells the waiting ranks that this rank is alive and making progress. Local; one store.
  void keep_alive() const noexcept;
  /// Runs a last barrier round with the group and leaves it.
  ///
  /// Collective; idempotent. Later calls are a `UsageError`. Dropping the last handle without `close()` also leaves the
  /// group, and ranks that still wait for this rank get an error.
  void close();

  /// Returns the group's transport. For backends and workspaces.
  [[nodiscard]] std::shared_ptr<spi::Transport> const& transport() const;
  /// Returns how long the group's calls may wait. For backends and workspaces.
  [[nodiscard]] spi::TimeoutPolicy const& timeout_policy() const;
  /// Makes every collective call on the group fail with a `UsageError` that says `why`, until called again with null.
  /// For workspaces.
  void refuse_calls(char const* why) const noexcept;
  /// Reserves the group for one call: a second call at the same time is a `UsageError`. For workspaces.
  class CROSSRANK_EXPORT CallLock {
   public:
    /// Begins the call. Errors name it `operation`.
    CallLock(Collective const& collective, char const* operation);
    /// Ends the call.
    ~CallLock();
    CallLock(CallLock const&) = delete;
    CallLock& operator=(CallLock const&) = delete;

   private:
    detail::GroupState* state_;
  };

 private:
  explicit Collective(std::shared_ptr<detail::GroupState> state) noexcept : state_(std::move(state)) {}
  friend class detail::NamedCalls;
  friend Collective connect(ConnectOptions options);
  friend Collective make_collective(std::shared_ptr<spi::Transport> transport, spi::TimeoutPolicy const& timeout_policy,
                                    CheckLevel check, ProgressMode progress);

  [[nodiscard]] detail::GroupState& state(char const* operation) const;
  void run(algorithms::Call&& call) const;
  [[nodiscard]] Request start(algorithms::Call&& call) const;
  void start_progress_thread() const;
  void all_reduce_bytes(std::span<std::byte> values, Dtype dtype, ReduceOp op) const;

  std::shared_ptr<detail::GroupState> state_{};
};

/// Makes a handle to the group of a transport. Local. For backends and tests. `UnavailableError` for
/// `ProgressMode::thread` on a transport that serves one thread only.
[[nodiscard]] CROSSRANK_EXPORT Collective make_collective(std::shared_ptr<spi::Transport> transport,
                                                          spi::TimeoutPolicy const& timeout_policy,
                                                          CheckLevel check = CheckLevel::local,
                                                          ProgressMode progress = ProgressMode::caller);

/// Joins the job that the launcher announced, and returns the group of all its ranks.
///
/// Collective over the job. Reads `RANK`, `WORLD_SIZE` and a job id as `crossrank run`, torchrun, Slurm and Open MPI
/// set them. Without a launcher the job consists only of this process, on the backend "fake". Threads of one process
/// need no job id. A second call returns the same job, with the timeouts and check level of the first call.
///
/// Errors: `UnavailableError` when several ranks were announced and no backend can serve them; it lists the backends
/// that were tried. There is no fallback to "fake". `TimeoutError` names the ranks that did not call `connect` within
/// `connect_timeout`; over MPI, whose start waits for all ranks, it names none. `PeerLostError` names a rank that ended
/// meanwhile; under `crossrank run` also one that ended before it called `connect`, without waiting for the timeout.
/// `UsageError` for a rank number that another process has, for another backend or world size than the job has that
/// this process has joined, and in a forked child that still has its parent's handle. `UnavailableError` for
/// `ProgressMode::thread` over an MPI that was not initialized with `MPI_THREAD_MULTIPLE`. All ranks of a node get the
/// same error. Follows `dist.init_process_group` of PyTorch.
[[nodiscard]] CROSSRANK_EXPORT Collective connect(ConnectOptions options = {});

}  // namespace crossrank

#include <crossrank/collective/elements.hpp>
