#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/group/expert_parallel.hpp>
#include <crossrank/group/graph_capture.hpp>
#include <crossrank/group/parallel_layout.hpp>
#include <crossrank/group/tensor_dict_requests.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// A rank of the job. It does not convert to a rank in the group, so that the two cannot be confused.
enum class GlobalRank : int {};

/// Says which rank broadcasts.
struct BroadcastFrom {
  int src = 0;  ///< rank in the group
};

/// Options of `GroupCoordinator::create`.
struct GroupOptions {
  std::string name = "anonymous";  ///< first part of the group's unique name
  std::string backend{};           ///< empty: the world's backend; another one is an `UnavailableError`
  /// Whether tensors use a group of their own, apart from objects and metadata. If all ranks have a GPU, `create` makes
  /// the communicator between their `default_device()`.
  bool device_communicator = false;
  bool broadcaster = false;  ///< `broadcast_object` from rank 0 goes through a message queue
  std::optional<Collective>
      data_parallel{};  ///< group of `dispatch` without sequence parallelism; empty: tokens stay local
};

/// Says which rank gathers, and along which dimension.
struct GatherTo {
  int dst = 0;            ///< the rank of the group that receives
  std::int64_t dim = -1;  ///< counts from the last dimension when negative
};

/// Queues from every rank to one reader.
struct SingleReaderQueues {
  MessageQueue own{};                ///< the queue that this rank writes
  std::vector<MessageQueue> from{};  ///< on the reader: one queue for each rank, including itself; else empty
};

/// Describes a buffer to reserve for a model.
struct BufferDescription {
  std::string name{};        ///< names the buffer
  Shape shape{};             ///< its dimensions
  Dtype dtype = Dtype::f32;  ///< its element type
};

/// A group of ranks for one kind of parallelism. Follows vLLM's `GroupCoordinator`.
///
/// A handle, cheap to copy; all copies name the same group. `src` and `dst` are ranks in the group, a `GlobalRank` is
/// a rank of the job. A negative `Dim` counts from the last dimension. Tensors are on the CPU or the GPU.
///
/// Results are new tensors. In a group of one rank, all_reduce, all_gather, reduce_scatter, gather and broadcast return
/// their argument, in the same memory. After `destroy()` every call is a `UsageError`. Collective calls have the costs
/// and errors of the same call of `Collective`. Accessors are local.
class CROSSRANK_EXPORT GroupCoordinator {
 public:
  /// Makes the listed groups and returns the one that holds this rank.
  ///
  /// Collective over `world`; one barrier round, and one more with a device communicator. A broadcaster adds those of
  /// `MessageQueue::create`. Also throws the errors of `Collective::split` and `MessageQueue::create`. The lists hold
  /// ranks of `world`; their order is the order in the group. `UsageError` on all ranks for a rank that is unknown,
  /// listed twice, or in no list.
  [[nodiscard]] static GroupCoordinator create(Collective const& world, std::vector<std::vector<int>> const& groups,
                                               GroupOptions options = {});
  /// Returns this process's group with that unique name. Local. `UsageError` for an unknown name or a destroyed group.
  [[nodiscard]] static GroupCoordinator by_name(std::string_view unique_name);

  /// Returns the group that objects and metadata use.
  [[nodiscard]] Collective const& cpu_group() const;
  /// Returns the CPU group, for calls that take a `Collective`.
  // NOLINTNEXTLINE(google-explicit-constructor): so that it can be passed as a group
  operator Collective const&() const { return cpu_group(); }
  /// Returns the group for tensors: the CPU group unless there is a device communicator.
  [[nodiscard]] Collective const& device_group() const;
  /// Returns this rank's number in the group.
  [[nodiscard]] int rank() const;
  /// Returns this rank's number in the group, under vLLM's name.
  [[nodiscard]] int rank_in_group() const { return rank(); }
  /// Returns the number of ranks in the group.
  [[nodiscard]] int world_size() const;
  /// Returns this rank's place among the job's ranks on its node, in every group. It selects the device.
  [[nodiscard]] int local_rank() const;
  /// Returns where `recv` allocates: `default_device()` of a group with a device communicator, else the CPU.
  [[nodiscard]] Device device() const;
  /// Returns a name such as "tp:0": the given name, and the number of groups with that name that this process made
  /// before.
  [[nodiscard]] std::string const& unique_name() const;
  /// Returns this rank's number in the job.
  [[nodiscard]] GlobalRank global_rank() const;
  /// Returns the members, in group order.
  [[nodiscard]] std::vector<GlobalRank> ranks() const;
  /// Returns the group's first rank.
  [[nodiscard]] GlobalRank first_rank() const;
  /// Returns the group's last rank.
  [[nodiscard]] GlobalRank last_rank() const;
  /// Returns the next rank of the group. The first rank follows the last one.
  [[nodiscard]] GlobalRank next_rank() const;
  /// Returns the previous rank of the group. The last rank precedes the first one.
  [[nodiscard]] GlobalRank prev_rank() const;
  /// Returns the number in the group of a rank of the job. `UsageError` when it is not in the group.
  [[nodiscard]] int rank_in_group(GlobalRank rank) const;
  /// Returns whether this is the group's first rank.
  [[nodiscard]] bool is_first_rank() const;
  /// Returns whether this is the group's last rank.
  [[nodiscard]] bool is_last_rank() const;

  /// Blocks until all ranks have called `barrier`. Collective; one barrier round of the CPU group. Touches no device.
  void barrier() const;
  /// Returns the combination of all ranks' tensors. Collective. `order` of this and the other reductions is as in
  /// `Collective`: it matters on GPUs only.
  [[nodiscard]] Tensor all_reduce(Tensor const& tensor, ReduceOp op = ReduceOp::sum,
                                  ReduceOrder order = ReduceOrder::any) const;
  /// Returns the combination of all ranks' tensors, in new memory even in a group of one rank. Collective.
  [[nodiscard]] Tensor all_reduce_out_place(Tensor const& tensor, ReduceOp op = ReduceOp::sum,
                                            ReduceOrder order = ReduceOrder::any) const;
  /// Replaces `tensor` by the combination of all ranks' tensors. Collective.
  void all_reduce_in_place(Tensor& tensor, ReduceOp op = ReduceOp::sum, ReduceOrder order = ReduceOrder::any) const;
  /// Returns the tensors of all ranks, which have the same shape, joined along `dim`. Collective; one more copy unless
  /// `dim` is the first.
  [[nodiscard]] Tensor all_gather(Tensor const& tensor, Dim dim = {-1}) const;
  /// Does the same as `all_gather`, in new memory even in a group of one rank. Collective.
  [[nodiscard]] Tensor all_gather_out_place(Tensor const& tensor, Dim dim = {-1}) const;
  /// Returns the tensors of all ranks, joined along their first dimension. Collective. `sizes[r]` is the number of rows
  /// of rank r; if `sizes` is empty, the ranks first exchange their sizes.
  [[nodiscard]] Tensor all_gatherv(Tensor const& tensor, std::vector<std::int64_t> const& sizes = {}) const;
  /// Joins each tensor of a list as `all_gatherv` joins one. Collective.
  ///
  /// Several tensors on one GPU travel as one call, packed on the GPU, which takes memory for as many bytes again.
  /// Others are one call each.
  [[nodiscard]] std::vector<Tensor> all_gatherv(std::vector<Tensor> const& tensors,
                                                std::vector<std::int64_t> const& sizes = {}) const;
  /// Adds the tensors of all ranks and returns the r-th of equal parts along `dim` on rank r.
  ///
  /// Collective. Works for every dimension, unlike vLLM's, which fails from dimension 2 on.
  [[nodiscard]] Tensor reduce_scatter(Tensor const& tensor, Dim dim = {-1}, ReduceOrder order = ReduceOrder::any) const;
  /// Does the same as `reduce_scatter`, in new memory even in a group of one rank. Collective.
  [[nodiscard]] Tensor reduce_scatter_out_place(Tensor const& tensor, Dim dim = {-1},
                                                ReduceOrder order = ReduceOrder::any) const;
  /// Adds the tensors of all ranks and returns `sizes[r]` entries along `dim` on rank r; equal parts when `sizes` is
  /// empty. Collective.
  [[nodiscard]] Tensor reduce_scatterv(Tensor const& tensor, Dim dim = {-1},
                                       std::vector<std::int64_t> const& sizes = {},
                                       ReduceOrder order = ReduceOrder::any) const;
  /// Joins the tensors of all ranks, which have the same shape, along `to.dim` on rank `to.dst`. Returns an undefined
  /// tensor on the other ranks. Collective.
  [[nodiscard]] Tensor gather(Tensor const& tensor, GatherTo to = {}) const;
  /// Fills `tensor` with the source's bytes, in place, and returns it. Collective.
  Tensor broadcast(Tensor tensor, BroadcastFrom source = {}) const;
  /// Sends a tensor to rank `dst`; empty: the next rank. A rank can send to itself only in a group of one.
  void send(Tensor const& tensor, std::optional<int> dst = {}) const;
  /// Returns the next tensor from rank `src`; empty: the previous rank. Shape and dtype must be the sender's.
  ///
  /// `UnavailableError` when the GPU has no memory for the tensor. The message is received and dropped then, and the
  /// group stays usable.
  [[nodiscard]] Tensor recv(Shape const& shape, Dtype dtype, std::optional<int> src = {}) const;

  /// Returns the source's object on every rank.
  ///
  /// Collective. If the group has a queue and the source is its writer, rank 0, the object goes through the queue. The
  /// writer may then be some messages ahead.
  template <class T>
  [[nodiscard]] T broadcast_object(T value, BroadcastFrom source = {}) const {
    if (!has_queue_from(source)) return cpu_group().broadcast_object(std::move(value), {source.src});
    auto const bytes = broadcast_by_queue([&] { return encode_object(value); });
    return rank() == source.src ? std::move(value) : detail::decode_in<T>(cpu_group(), "broadcast_object", bytes);
  }
  /// Replaces `values` by the source's, in place, and returns them. Collective. All ranks pass the same number of
  /// entries.
  template <class T>
  std::vector<T>& broadcast_object_list(std::vector<T>& values, BroadcastFrom source = {}) const {
    cpu_group().broadcast_objects(values, {source.src});
    return values;
  }
  /// Sends one object to rank `dst` of the group. Errors as for `Collective::send_object`.
  template <class T>
  void send_object(T const& value, int dst) const {
    cpu_group().send_object(value, dst);
  }
  /// Returns the next object from rank `src` of the group. Errors as for `Collective::recv_object`.
  template <class T>
  [[nodiscard]] T recv_object(int src) const {
    return cpu_group_after_dicts(src, "recv_object").template recv_object<T>(src);
  }

  /// Returns the source's dictionary, nested values included; a new one on the other ranks.
  ///
  /// Collective. Metadata and small tensors travel as one object; each other non-empty tensor follows.
  TensorDict broadcast_tensor_dict(TensorDict dict, BroadcastFrom source = {}) const;
  /// Sends a dictionary to one rank.
  ///
  /// With an all-gather group, all of its ranks call this function, and their receivers have such a group too. A tensor
  /// whose number of elements is a multiple of the group's size is sent in parts, one by each rank. In a group of one
  /// rank nothing is sent, and `recv_tensor_dict` returns an empty dictionary.
  void send_tensor_dict(TensorDict const& dict, SendDictOptions options = {}) const;
  /// Returns the next dictionary of one rank.
  ///
  /// While dictionaries from a rank are still being received, later messages of this coordinator from that rank wait
  /// for them. A message received through `cpu_group()` does not wait, which leads to a `MismatchError`.
  /// `UnavailableError` when a GPU has no memory for a tensor: the dictionary is received and dropped. The group stays
  /// usable, but an all-gather group that joins parts of it fails on all its ranks.
  [[nodiscard]] TensorDict recv_tensor_dict(RecvDictOptions options = {}) const;
  /// Starts a `send_tensor_dict` and returns at once.
  [[nodiscard]] TensorDictSend isend_tensor_dict(TensorDict const& dict, SendDictOptions options = {}) const;
  /// Starts a `recv_tensor_dict` and returns at once. Any number may be in progress. They receive the dictionaries in
  /// the order in which they were started, whichever is waited for first.
  [[nodiscard]] TensorDictReceive irecv_tensor_dict(RecvDictOptions options = {}) const;

  /// Brings the tokens of all ranks to each rank: hidden states, logits and extras, joined along their first dimension.
  ///
  /// Collective; one `all_gatherv` of the list. In a group of one rank, or without sequence parallelism and without a
  /// data-parallel group, it returns the same tensors, and `combine` returns its argument.
  [[nodiscard]] Dispatched dispatch(Tensor const& hidden_states, Tensor const& router_logits,
                                    DispatchOptions options = {}) const;
  /// Adds all ranks' results for the dispatched tokens and returns this rank's own rows. Collective.
  [[nodiscard]] Tensor combine(Tensor const& hidden_states, ExpertRoute const& route,
                               ReduceOrder order = ReduceOrder::any) const;

  /// Makes a queue from one rank to all others and returns this rank's endpoint. Collective; costs and errors as for
  /// `MessageQueue::create`.
  [[nodiscard]] MessageQueue create_mq_broadcaster(QueueOptions const& options = {}) const;
  /// Attaches all ranks to the queue of a writer outside the group.
  ///
  /// Collective. The writer made the queue with `MessageQueue::create_writer`, with one reader for each rank of the
  /// group. Only rank `relay.src` needs the handle; the argument of the other ranks is ignored.
  [[nodiscard]] MessageQueue attach_mq_broadcaster(std::vector<std::byte> const& writer_handle,
                                                   BroadcastFrom relay = {}) const;
  /// Makes a queue from each rank to `reader`. Collective; one gather and one broadcast. All ranks must be on one node.
  /// Errors as for `MessageQueue::create_writer` and `attach`.
  [[nodiscard]] SingleReaderQueues create_single_reader_mq_broadcasters(int reader = 0,
                                                                        QueueOptions options = {}) const;

  /// Begins a scope for the capture of graphs with `cuda::Graph::capture`, and makes the group's communicator first.
  ///
  /// Collective where the group has tensors on GPUs: with `device_communicator`, or when the context has a stream of a
  /// GPU; local and free otherwise. Blocks until all ranks have come, the first time. Pass the context of one group's
  /// scope to the next to capture the calls of both. Follows vLLM's `GroupCoordinator.graph_capture`.
  [[nodiscard]] GraphCapture graph_capture(GraphContext context = {}) const;
  /// Reserves named buffers of zero bytes, for tensors of later collectives. `UsageError` for a name that already
  /// exists with another shape.
  ///
  /// Local for a group on the CPU. With `device_communicator` on GPUs it is collective, with the same list on all
  /// ranks: where NCCL carries the group's collectives, the buffers come from NCCL's allocator and are registered with
  /// the communicator, as windows since NCCL 2.27, so that collectives on them need no copies of NCCL's own. End your
  /// own work on such a buffer before its last view goes and before the group ends. `MismatchError` when the sizes
  /// differ between ranks; `UnavailableError` on all ranks, which names the rank, when one of them has no memory.
  void prepare_communication_buffer_for_model(std::vector<BufferDescription> const& buffers) const;
  /// Returns the reserved buffer of that name. Local. `UsageError` if no buffer has that name.
  [[nodiscard]] Tensor communication_buffer(std::string_view name) const;

  /// Leaves the group: closes the queue, then drops the device group and the CPU group. Local; idempotent. Ranks that
  /// still wait for this rank get an error.
  void destroy() const;

 private:
  struct State;
  explicit GroupCoordinator(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] State& state(char const* operation) const;
  [[nodiscard]] Collective const& dense(char const* operation) const;
  /// Returns the CPU group once the receives of all earlier dictionaries from `src` are posted, so that a message that
  /// is received next belongs to the caller. Blocks until then.
  [[nodiscard]] Collective const& cpu_group_after_dicts(int src, char const* operation) const;
  [[nodiscard]] bool has_queue_from(BroadcastFrom source) const;
  [[nodiscard]] detail::Bytes broadcast_by_queue(detail::Produce const& produce) const;

  std::shared_ptr<State> state_;
};

}  // namespace crossrank
