#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/device.hpp>
#include <crossrank/export.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/tensor_dict.hpp>

namespace crossrank {

/// A rank of the job. It does not convert to a rank in the group: taking one for the other reaches the wrong rank.
enum class GlobalRank : int {};

/// The rank of the group that a broadcast goes out from.
struct Source {
  int src = 0;
};

struct GroupOptions {
  std::string name = "anonymous";
  std::string backend{};             ///< empty: that of the world; another one than that is an `UnavailableError`
  bool device_communicator = false;  ///< dense data gets a group of its own, apart from objects and metadata
  bool broadcaster = false;          ///< `broadcast_object` from rank 0 goes through a message queue
  std::optional<Collective> data_parallel{};  ///< for `dispatch` without sequence parallelism; none: tokens stay here
};

/// Where `gather` ends and along which dimension it joins.
struct GatherTo {
  int dst = 0;
  std::int64_t dim = -1;
};

struct SendDictOptions {
  std::optional<int> dst{};                      ///< empty: the next rank
  std::optional<Collective> all_gather_group{};  ///< holds the same tensors on each rank: each sends its part of them
  std::map<std::string, bool> all_gather_tensors{};  ///< by key (nested: dotted): whether it is sent in parts
};

struct RecvDictOptions {
  std::optional<int> src{};                      ///< empty: the previous rank
  std::optional<Collective> all_gather_group{};  ///< joins the parts; as many ranks as the sender's group
};

struct DispatchOptions {
  bool is_sequence_parallel = false;    ///< over this group; else over its `data_parallel` group, if there is one
  std::vector<std::int64_t> sizes{};    ///< rows of each rank there; empty: they are exchanged
  std::vector<Tensor> extra_tensors{};  ///< travel along; as many rows as the rest
};

/// The way that `combine` takes back.
class CROSSRANK_EXPORT ExpertRoute {
 public:
  ExpertRoute() = default;
  /// Rows of each rank, in rank order; empty when nothing travelled.
  [[nodiscard]] std::vector<std::int64_t> const& sizes() const noexcept { return sizes_; }

 private:
  friend class GroupCoordinator;
  std::vector<std::int64_t> sizes_{};
  std::optional<Collective> group_{};
};

struct Dispatched {
  Tensor hidden_states{};
  Tensor router_logits{};
  std::vector<Tensor> extra_tensors{};
  ExpertRoute route{};
};

/// A queue from every rank to one reader.
struct SingleReaderQueues {
  MessageQueue own{};                ///< this rank writes it
  std::vector<MessageQueue> from{};  ///< on the reader: what it reads of each rank, its own included; else empty
};

/// Memory that a model wants to have at hand.
struct BufferDescription {
  std::string name{};
  Shape shape{};
  Dtype dtype = Dtype::f32;
};

/// What a capture runs in; `stream` belongs to a device's backend.
struct GraphContext {
  std::shared_ptr<void> stream{};
};

/// A scope in which a device's work is captured. Without a device it holds its context and captures nothing.
class CROSSRANK_EXPORT GraphCapture {
 public:
  explicit GraphCapture(GraphContext context) noexcept : context_(std::move(context)) {}
  ~GraphCapture() = default;
  GraphCapture(GraphCapture const&) = delete;
  GraphCapture& operator=(GraphCapture const&) = delete;
  [[nodiscard]] GraphContext const& context() const noexcept { return context_; }

 private:
  GraphContext context_;
};

/// A dictionary on its way to another rank. Holds tensors and metadata until they have gone.
class CROSSRANK_EXPORT TensorDictSend {
 public:
  TensorDictSend() noexcept;  ///< nothing under way
  TensorDictSend(TensorDictSend&&) noexcept;
  TensorDictSend& operator=(TensorDictSend&&) noexcept;
  TensorDictSend(TensorDictSend const&) = delete;
  TensorDictSend& operator=(TensorDictSend const&) = delete;
  ~TensorDictSend();
  /// Whether all has gone. Never blocks.
  [[nodiscard]] bool test();
  void wait();

 private:
  friend class GroupCoordinator;
  struct State;
  std::unique_ptr<State> state_;
};

/// A dictionary on its way from another rank. It goes on while it, or anything behind it, is tested or waited for: two
/// ranks that send each other large ones wait for what comes before they wait for what goes. Dropped before it has
/// come, it leaves the two ranks out of step.
class CROSSRANK_EXPORT TensorDictReceive {
 public:
  TensorDictReceive() noexcept;  ///< an empty dictionary, here
  TensorDictReceive(TensorDictReceive&&) noexcept;
  TensorDictReceive& operator=(TensorDictReceive&&) noexcept;
  TensorDictReceive(TensorDictReceive const&) = delete;
  TensorDictReceive& operator=(TensorDictReceive const&) = delete;
  ~TensorDictReceive();
  /// Whether all messages have come. Never blocks.
  [[nodiscard]] bool test();
  /// The dictionary: waits at the first call, and joins parts with the all-gather group; later calls return at once, or
  /// throw what the first one threw.
  TensorDict const& wait();

 private:
  friend class GroupCoordinator;
  struct State;
  std::unique_ptr<State> state_;
};

/// A group of ranks for one kind of parallelism, after vLLM's coordinator: a handle, all copies name the same group.
///
/// Ranks given as `src` and `dst` count inside the group; `GlobalRank`s are those of the job. `Dim` counts from the end
/// when negative. Results are new tensors; with one rank, all_reduce, all_gather, reduce_scatter, gather and broadcast
/// give back what they were given, the same memory. Tensors are on the CPU. After `destroy()` each call is a
/// `UsageError`. The collective calls fail as those of `Collective` do.
class CROSSRANK_EXPORT GroupCoordinator {
 public:
  /// Makes the groups whose ranks (of `world`) are listed, in the order of the lists, and returns the one of this rank.
  /// Collective over `world`; one meeting, two with a device communicator. `UsageError` on all ranks for one that is
  /// listed twice, nowhere, or is none.
  [[nodiscard]] static GroupCoordinator create(Collective const& world, std::vector<std::vector<int>> const& groups,
                                               GroupOptions options = {});
  /// The group of that unique name in this process. `UsageError` for one that is unknown or gone.
  [[nodiscard]] static GroupCoordinator by_name(std::string_view unique_name);

  [[nodiscard]] Collective const& cpu_group() const;
  // NOLINTNEXTLINE(google-explicit-constructor): goes wherever a group does
  operator Collective const&() const { return cpu_group(); }
  /// The group that dense data takes: the CPU group unless there is a device communicator.
  [[nodiscard]] Collective const& device_group() const;
  /// Place in the group; `rank_in_group()` is the reference's name for it.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int rank_in_group() const { return rank(); }
  [[nodiscard]] int world_size() const;
  /// Place of this rank among the ranks of the job on its node, whatever the group: it selects the device.
  [[nodiscard]] int local_rank() const;
  /// Where dense data of this rank lies: on the CPU, as no backend for devices is here.
  [[nodiscard]] Device device() const;
  /// "tp:0": the name and how many of it this process made before.
  [[nodiscard]] std::string const& unique_name() const;
  [[nodiscard]] GlobalRank global_rank() const;
  [[nodiscard]] std::vector<GlobalRank> ranks() const;
  [[nodiscard]] GlobalRank first_rank() const;
  [[nodiscard]] GlobalRank last_rank() const;
  [[nodiscard]] GlobalRank next_rank() const;  ///< after the last one comes the first
  [[nodiscard]] GlobalRank prev_rank() const;
  /// Place in the group of a rank of the job. `UsageError` when it is not in the group.
  [[nodiscard]] int rank_in_group(GlobalRank rank) const;
  [[nodiscard]] bool is_first_rank() const;
  [[nodiscard]] bool is_last_rank() const;

  /// One meeting of the CPU group; no device is touched.
  void barrier() const;
  [[nodiscard]] Tensor all_reduce(Tensor const& tensor, ReduceOp op = ReduceOp::sum) const;
  /// The same without the short cut for one rank.
  [[nodiscard]] Tensor all_reduce_out_place(Tensor const& tensor, ReduceOp op = ReduceOp::sum) const;
  void all_reduce_in_place(Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  /// Joins equal tensors along `dim`. One copy more where `dim` is not the first.
  [[nodiscard]] Tensor all_gather(Tensor const& tensor, Dim dim = {-1}) const;
  [[nodiscard]] Tensor all_gather_out_place(Tensor const& tensor, Dim dim = {-1}) const;
  /// Joins tensors of `sizes` rows along their first dimension; sizes are exchanged when empty. A list gives a list.
  [[nodiscard]] Tensor all_gatherv(Tensor const& tensor, std::vector<std::int64_t> const& sizes = {}) const;
  [[nodiscard]] std::vector<Tensor> all_gatherv(std::vector<Tensor> const& tensors,
                                                std::vector<std::int64_t> const& sizes = {}) const;
  /// Adds the tensors of all ranks and keeps the r-th of equal parts along `dim` on rank r. Right for every dimension,
  /// where the reference is not from dimension 2 on.
  [[nodiscard]] Tensor reduce_scatter(Tensor const& tensor, Dim dim = {-1}) const;
  [[nodiscard]] Tensor reduce_scatter_out_place(Tensor const& tensor, Dim dim = {-1}) const;
  /// The same with parts of `sizes`; equal ones when empty.
  [[nodiscard]] Tensor reduce_scatterv(Tensor const& tensor, Dim dim = {-1},
                                       std::vector<std::int64_t> const& sizes = {}) const;
  /// Joins equal tensors on `dst`; none elsewhere.
  [[nodiscard]] Tensor gather(Tensor const& tensor, GatherTo to = {}) const;
  /// Fills `tensor` with the source's, in place, and returns it.
  Tensor broadcast(Tensor tensor, Source source = {}) const;
  /// `dst` empty: the next rank; `src` empty: the previous one. A rank sends to itself only where it is alone.
  void send(Tensor const& tensor, std::optional<int> dst = {}) const;
  [[nodiscard]] Tensor recv(Shape const& shape, Dtype dtype, std::optional<int> src = {}) const;

  /// Through the queue where there is one and the source is its writer, rank 0, which may then be some messages ahead.
  template <class T>
  [[nodiscard]] T broadcast_object(T value, Source source = {}) const {
    if (!has_queue_from(source)) return cpu_group().broadcast_object(std::move(value), {source.src});
    auto const bytes = broadcast_by_queue([&] { return encode_object(value); });
    return rank() == source.src ? std::move(value) : detail::decode_in<T>(cpu_group(), "broadcast_object", bytes);
  }
  /// In place, and returned; as many entries on each rank.
  template <class T>
  std::vector<T>& broadcast_object_list(std::vector<T>& values, Source source = {}) const {
    cpu_group().broadcast_objects(values, {source.src});
    return values;
  }
  template <class T>
  void send_object(T const& value, int dst) const {
    cpu_group().send_object(value, dst);
  }
  template <class T>
  [[nodiscard]] T recv_object(int src) const {
    return behind_dicts(src, "recv_object").template recv_object<T>(src);
  }

  /// The source's dictionary, nested values and all: the same there, a new one elsewhere. Metadata and small tensors
  /// travel as one object, then each other tensor that is not empty.
  TensorDict broadcast_tensor_dict(TensorDict dict, Source source = {}) const;
  /// Sends a dictionary to one rank. With an all-gather group, tensors that divide by its size travel in parts, of
  /// which each rank sends one: all of them send, to ranks that receive with such a group. With one rank: nothing, and
  /// `recv_tensor_dict` gives an empty one.
  void send_tensor_dict(TensorDict const& dict, SendDictOptions options = {}) const;
  /// Whatever is received from a rank while dictionaries of it are under way comes behind them, and waits until what
  /// they consist of is on its way; through `cpu_group()` it would not: a `MismatchError`.
  [[nodiscard]] TensorDict recv_tensor_dict(RecvDictOptions options = {}) const;
  [[nodiscard]] TensorDictSend isend_tensor_dict(TensorDict const& dict, SendDictOptions options = {}) const;
  /// Any number may be under way: each gets the dictionary that was sent in its turn, whichever is waited for first.
  [[nodiscard]] TensorDictReceive irecv_tensor_dict(RecvDictOptions options = {}) const;

  /// Brings the tokens of all ranks to each: hidden states, logits and extras joined along their first dimension.
  /// Without sequence parallelism and without a data-parallel group everything stays where it is: the same tensors come
  /// back, and `combine` gives back what it is given. So it does in a group of one rank.
  [[nodiscard]] Dispatched dispatch(Tensor const& hidden_states, Tensor const& router_logits,
                                    DispatchOptions options = {}) const;
  /// Adds what all ranks made of the dispatched tokens and gives each rank its own rows.
  [[nodiscard]] Tensor combine(Tensor const& hidden_states, ExpertRoute const& route) const;

  /// A queue from one rank to all others. Collective; returns this rank's end.
  [[nodiscard]] MessageQueue create_mq_broadcaster(QueueOptions const& options = {}) const;
  /// The same with a writer outside the group, who has made its queue with `MessageQueue::create_writer` for as many
  /// readers as there are ranks: rank `relay` has the handle, the others' is not looked at. Every rank reads.
  [[nodiscard]] MessageQueue attach_mq_broadcaster(std::vector<std::byte> const& writer_handle,
                                                   Source relay = {}) const;
  /// A queue from each rank to `reader`, ready for use. Collective. All ranks are on one node.
  [[nodiscard]] SingleReaderQueues create_single_reader_mq_broadcasters(int reader = 0,
                                                                        QueueOptions options = {}) const;

  /// Captures nothing, as there is no device: holds the given or an empty context.
  [[nodiscard]] GraphCapture graph_capture(GraphContext context = {}) const;
  /// Reserves zeroed memory under names. Local. A name that is there already with another shape is a `UsageError`.
  void prepare_communication_buffer_for_model(std::vector<BufferDescription> const& buffers) const;
  [[nodiscard]] Tensor communication_buffer(std::string_view name) const;

  /// Leaves the group: ends the queue, drops the device group, then the CPU group. Idempotent.
  void destroy() const;

 private:
  struct State;
  explicit GroupCoordinator(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] State& state(char const* operation) const;
  [[nodiscard]] Collective const& dense(char const* operation) const;
  /// The CPU group, where no dictionary of `src` is between this call and what it receives next.
  [[nodiscard]] Collective const& behind_dicts(int src, char const* operation) const;
  [[nodiscard]] bool has_queue_from(Source source) const;
  [[nodiscard]] detail::Bytes broadcast_by_queue(detail::Produce const& produce) const;

  std::shared_ptr<State> state_;
};

/// Sizes of the standard axes; the last one is fastest.
struct ParallelSizes {
  int external_data_parallel = 1;
  int data_parallel = 1;
  int pipeline_parallel = 1;
  int prefill_context_parallel = 1;
  int tensor_parallel = 1;
};

/// The groups along each axis, each list as `GroupCoordinator::create` takes it.
struct ParallelLayout {
  std::vector<std::vector<int>> data_parallel{};
  std::vector<std::vector<int>> pipeline_parallel{};
  std::vector<std::vector<int>> prefill_context_parallel{};
  std::vector<std::vector<int>> tensor_parallel{};
  std::vector<std::vector<int>> expert_parallel{};  ///< data x prefill context x tensor parallel, merged
};

/// Lays ranks out as [external DP, DP, PP, PCP, TP]. Local. `UsageError` for a size below 1 or more than 2^30 ranks.
[[nodiscard]] CROSSRANK_EXPORT ParallelLayout parallel_layout(ParallelSizes const& sizes);

/// Which tokens of a step.
struct ExpertChunk {
  int sequence_parallel = 1;           ///< ranks that share the tokens of one data-parallel rank
  std::int64_t index = 0;              ///< number of the chunk
  std::optional<std::int64_t> most{};  ///< rows of a chunk; empty: all at once
};

/// Rows of each rank for `dispatch`, from the tokens of each data-parallel rank. A rank that has no rows left in a
/// chunk takes part with one, so that all stay in step. Local.
[[nodiscard]] CROSSRANK_EXPORT std::vector<std::int64_t> expert_sizes(std::vector<std::int64_t> const& tokens,
                                                                      ExpertChunk const& chunk = {});

}  // namespace crossrank
