// Counts what operations on GPU tensors ask of the GPU, on the emulated driver: calls, copies, waits of the host.
// Checks no times. The ranks count after some calls, with all earlier work at its end.
//
// Usage: bench_rank_device_counts --out FILE [--quick] [--only OPERATION]
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include "bench/device/gpu_log.hpp"
#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

using Limits = std::map<std::string, double>;

/// One operation, and how much it may ask of the GPU of any rank.
struct Operation {
  std::string name{};
  std::size_t bytes = 0;  ///< of one rank's tensors
  std::function<void()> call{};
  Limits limits{};
};

constexpr std::size_t short_bytes = std::size_t{256} << 10;
constexpr std::size_t piece_bytes = std::size_t{4} << 20;  // of what goes through host memory
constexpr std::size_t long_bytes = 4 * piece_bytes;
constexpr int tensors_of_a_state = 4;

/// The group, its GPU, and tensors on it.
struct Rank {
  xr::Collective world = xr::connect();
  xr::Device gpu = xr::default_device();
  int ranks = world.world_size();
  bool staged = false;  ///< collectives go through host memory

  [[nodiscard]] xr::Tensor floats(std::size_t bytes) const {
    return xr::Tensor::zeros({static_cast<std::int64_t>(bytes / sizeof(float))}, xr::Dtype::f32, gpu);
  }
  [[nodiscard]] std::size_t whole(std::size_t part) const { return part * static_cast<std::size_t>(ranks); }
  /// Returns the limits of a collective: one kernel of NCCL, or else some copies and one wait of the host.
  [[nodiscard]] Limits collective(double copies) const {
    if (staged) return {{"kernels", 0}, {"copies", copies}, {"host_waits", 1}, {"made", 0}};
    return {{"kernels", 1}, {"copies", 0}, {"host_waits", 0}, {"made", 0}};
  }
};

xr::StateDict weights_of(Rank const& rank) {
  xr::StateDict weights;
  for (int i = 0; i < tensors_of_a_state; ++i)
    weights.insert_or_assign("w" + std::to_string(i), rank.floats(short_bytes));
  return weights;
}

std::vector<Operation> reductions(Rank const& rank) {
  auto const& world = rank.world;
  auto const small = rank.floats(short_bytes);
  auto const large = rank.floats(long_bytes);
  auto const whole = rank.floats(rank.whole(short_bytes));
  std::vector<std::int64_t> const rows(static_cast<std::size_t>(rank.ranks), small.numel());
  auto pieces = rank.collective(2.0 * long_bytes / piece_bytes);
  if (rank.staged) pieces["host_waits"] = static_cast<double>(long_bytes) / piece_bytes;
  auto in_rank_order = rank.collective(2);
  if (!rank.staged) in_rank_order = {{"kernels", 2}, {"copies", 0}, {"host_waits", 0}, {"made", 1}};
  return {
      {"all_reduce", short_bytes, [=, t = small]() mutable { world.all_reduce(t); }, rank.collective(2)},
      {"all_reduce", long_bytes, [=, t = large]() mutable { world.all_reduce(t); }, pieces},
      {"all_reduce in rank order", short_bytes,
       [=, t = small]() mutable { world.all_reduce(t, xr::ReduceOp::sum, xr::ReduceOrder::rank); }, in_rank_order},
      {"reduce", short_bytes, [=, t = small]() mutable { world.reduce(t); }, rank.collective(2)},
      {"reduce_scatter", rank.whole(short_bytes), [=, out = small]() mutable { world.reduce_scatter(out, whole); },
       rank.collective(2)},
      {"reduce_scatterv", rank.whole(short_bytes),
       [=, out = small]() mutable { world.reduce_scatterv(out, whole, {.rows = rows}); }, rank.collective(2)},
  };
}

std::vector<Operation> movements(Rank const& rank) {
  auto const& world = rank.world;
  auto const part = rank.floats(short_bytes);
  auto const whole = rank.floats(rank.whole(short_bytes));
  auto const other = rank.floats(rank.whole(short_bytes));
  std::vector<std::int64_t> const rows(static_cast<std::size_t>(rank.ranks), part.numel());
  auto const long_part = rank.floats(long_bytes);
  auto const long_whole = rank.floats(rank.whole(long_bytes));
  auto const pieces = static_cast<double>(rank.whole(long_bytes)) / piece_bytes;
  auto in_pieces = rank.collective(2 * pieces);
  if (rank.staged) in_pieces["host_waits"] = pieces;
  auto exchange = rank.collective(2);
  if (!rank.staged) exchange["copies"] = 1;  // of this rank's part for itself
  return {
      {"broadcast", short_bytes, [=, t = part]() mutable { world.broadcast(t); }, rank.collective(1)},
      {"all_gather", short_bytes, [=, out = whole]() mutable { world.all_gather(out, part); }, rank.collective(2)},
      {"all_gather", long_bytes, [=, out = long_whole]() mutable { world.all_gather(out, long_part); }, in_pieces},
      {"all_gatherv", short_bytes, [=, out = whole]() mutable { world.all_gatherv(out, part, {.rows = rows}); },
       rank.collective(2)},
      {"gather", short_bytes, [=, out = whole]() mutable { world.gather(out, part); }, rank.collective(2)},
      {"gatherv", short_bytes, [=, out = whole]() mutable { world.gatherv(out, part, {.rows = rows}); },
       rank.collective(2)},
      {"scatter", short_bytes, [=, out = part]() mutable { world.scatter(out, whole); }, rank.collective(2)},
      {"scatterv", short_bytes, [=, out = part]() mutable { world.scatterv(out, whole, {.rows = rows}); },
       rank.collective(2)},
      {"all_to_all", rank.whole(short_bytes), [=, out = whole]() mutable { world.all_to_all(out, other); },
       rank.collective(2)},
      {"all_to_allv", rank.whole(short_bytes),
       [=, out = whole]() mutable { world.all_to_allv(out, other, {.send = rows, .receive = rows}); }, exchange},
  };
}

/// Calls on two tensors pack and unpack a buffer on the GPU, with one copy for each tensor.
std::vector<Operation> fused(Rank const& rank) {
  auto const& world = rank.world;
  auto const pair = [&rank](std::size_t bytes) { return std::vector{rank.floats(bytes), rank.floats(bytes)}; };
  auto const limits = [&rank](double buffers) {
    auto all = rank.collective(2);
    all["copies"] += 4;
    all["made"] = buffers;
    return all;
  };
  auto const parts = pair(short_bytes);
  auto const wholes = pair(rank.whole(short_bytes));
  using Tensors = std::span<xr::Tensor>;
  using Inputs = std::span<xr::Tensor const>;
  return {
      {"all_reduce of 2 tensors", 2 * short_bytes, [=, t = parts]() mutable { world.iall_reduce(Tensors(t)).wait(); },
       limits(1)},
      {"all_gather of 2 tensors", 2 * short_bytes,
       [=, out = wholes]() mutable { world.iall_gather(Tensors(out), Inputs(parts)).wait(); }, limits(2)},
      {"reduce_scatter of 2 tensors", 2 * rank.whole(short_bytes),
       [=, out = parts]() mutable { world.ireduce_scatter(Tensors(out), Inputs(wholes)).wait(); }, limits(2)},
  };
}

std::vector<Operation> messages(Rank const& rank, xr::MessageQueue const& queue) {
  auto const& world = rank.world;
  auto const out = rank.floats(short_bytes);
  auto const in = rank.floats(short_bytes);
  int const next = (world.rank() + 1) % rank.ranks;
  int const previous = (world.rank() + rank.ranks - 1) % rank.ranks;
  std::vector<int> everyone(static_cast<std::size_t>(rank.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const group = xr::GroupCoordinator::create(world, {everyone});
  auto const dict = [&rank] {
    xr::TensorDict all;
    for (auto const& [name, tensor] : weights_of(rank)) all.set(name, tensor);
    return all;
  };
  auto const of_dict = [](double copies, double kernels) -> Limits {
    double const waits = kernels > 0 ? 0 : tensors_of_a_state;
    return {{"kernels", kernels}, {"copies", copies}, {"host_waits", waits}, {"made", tensors_of_a_state}};
  };
  auto broadcast = rank.staged ? of_dict(tensors_of_a_state, 0) : of_dict(0, tensors_of_a_state);
  if (rank.staged) broadcast["made"] += 1;  // a buffer, for a GPU that lags further behind than before
  auto const exchange = [queue, tensor = out, all = dict()](bool of_tensor) {
    if (queue.is_writer()) return of_tensor ? queue.enqueue(tensor) : queue.enqueue(all);
    if (of_tensor) return static_cast<void>(queue.dequeue<xr::Tensor>());
    static_cast<void>(queue.dequeue<xr::TensorDict>());
  };
  return {
      {"sendrecv",
       short_bytes,
       [=, t = in]() mutable { world.sendrecv(t, out, {.dst = next, .src = previous}); },
       {{"kernels", 0}, {"copies", 2}, {"host_waits", 1}, {"made", 0}}},
      {"recv_any",
       short_bytes,
       [=, t = in]() mutable {
         auto sending = world.isend(out, next);
         world.recv_any(t);
         sending.wait();
       },
       {{"kernels", 0}, {"copies", 2}, {"host_waits", 1}, {"made", 0}}},
      {"send and recv_tensor_dict", tensors_of_a_state * short_bytes,
       [=, all = dict()] {
         auto sending = group.isend_tensor_dict(all, {.dst = next});
         static_cast<void>(group.recv_tensor_dict({.src = previous}));
         sending.wait();
       },
       of_dict(2 * tensors_of_a_state, 0)},
      {"broadcast_tensor_dict", tensors_of_a_state * short_bytes,
       [=, all = dict()] {
         static_cast<void>(group.broadcast_tensor_dict(world.rank() == 0 ? all : xr::TensorDict()));
       },
       broadcast},
      {"queue, tensor",
       short_bytes,
       [=] { exchange(true); },
       {{"kernels", 0}, {"copies", 1}, {"host_waits", 1}, {"made", 1}}},
      {"queue, dictionary", tensors_of_a_state * short_bytes, [=] { exchange(false); }, of_dict(tensors_of_a_state, 0)},
  };
}

/// Calls of a model with experts. A dispatch gathers hidden states and logits in one call, through two buffers into new
/// memory.
std::vector<Operation> experts(Rank const& rank) {
  std::vector<int> everyone(static_cast<std::size_t>(rank.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const group = xr::GroupCoordinator::create(rank.world, {everyone});
  constexpr std::int64_t tokens = 64;
  std::vector<std::int64_t> const sizes(everyone.size(), tokens);
  auto const states = rank.floats(short_bytes).reshape({tokens, short_bytes / sizeof(float) / tokens});
  auto const logits = rank.floats(short_bytes).reshape(states.shape());
  auto const dispatch = [=] { return group.dispatch(states, logits, {.is_sequence_parallel = true, .sizes = sizes}); };
  auto const dispatched = dispatch();
  auto dispatching = rank.collective(2);
  dispatching["copies"] += 4;
  dispatching["made"] = 4;
  auto combining = rank.collective(2);
  combining["made"] = 1;
  return {{"dispatch", 2 * short_bytes, [=] { static_cast<void>(dispatch()); }, dispatching},
          {"combine", rank.whole(short_bytes),
           [=] { static_cast<void>(group.combine(dispatched.hidden_states, dispatched.route)); }, combining}};
}

/// Work of one rank on its own GPU, and a replay of a graph with a collective.
std::vector<Operation> on_the_gpu(Rank const& rank) {
  auto const tensor = rank.floats(short_bytes);
  auto const halves = std::vector{tensor.reshape({64, tensor.numel() / 64}), tensor.reshape({64, tensor.numel() / 64})};
  auto const limits = [](double copies) -> Limits {
    return {{"kernels", 0}, {"copies", copies}, {"host_waits", 0}, {"made", 1}};
  };
  std::vector<Operation> all{
      {"clone", short_bytes, [=] { static_cast<void>(tensor.clone()); }, limits(1)},
      {"concat along dimension 1", 2 * short_bytes, [=] { static_cast<void>(xr::concat(halves, {.dim = 1})); },
       limits(2)},
      {"to(Dtype)", short_bytes, [=] { static_cast<void>(tensor.to(xr::Dtype::bf16)); }, limits(0)},
  };
  if (rank.staged) return all;
  auto const stream = xr::Stream::create(rank.gpu);
  auto const graph =
      xr::cuda::Graph::capture(stream, [world = rank.world, t = tensor]() mutable { world.all_reduce(t); });
  all.push_back({"replay of all_reduce", short_bytes, [=] { graph.replay(); }, rank.collective(0)});
  return all;
}

/// States of four tensors. Through memory the host waits once; through files it waits for each piece.
std::vector<Operation> states(Rank const& rank, std::string const& folder) {
  auto const& world = rank.world;
  auto const state = xr::RankState{.config = 1, .weights = weights_of(rank)};
  auto const bytes = tensors_of_a_state * short_bytes;
  auto memory = xr::SharedMemoryWorkspace(world);
  auto files = xr::NFSWorkspace(folder + "/states", {.rank = world.rank()});
  auto const limits = [](double waits, double copies, double made) -> Limits {
    return {{"kernels", 0}, {"copies", copies}, {"host_waits", waits}, {"made", made}};
  };
  auto const gather = [=](xr::GatherOptions const& options) {
    if (options.to.kind == xr::Device::Kind::cpu) return xr::get_configs_parallel(state, world, options).close();
    static_cast<void>(xr::get_configs_parallel(state, world, options).take());
  };
  auto const read = [rank = world.rank(), gpu = rank.gpu](auto const& from) {
    static_cast<void>(from.read_configs_and_weights_from_rank(rank, {.to = gpu}));
  };
  auto const shareable = xr::Tensor::empty({static_cast<std::int64_t>(short_bytes)}, xr::Dtype::u8,
                                           xr::MemoryOptions{.device = rank.gpu, .shareable = true});
  double const n = tensors_of_a_state;
  double const received = n * (rank.ranks - 1);
  return {
      {"get_tensors_parallel", short_bytes,
       [=, t = rank.floats(short_bytes)] { xr::get_tensors_parallel(t, world).close(); }, limits(1, 1, 0)},
      {"get_tensors_parallel in place", short_bytes,
       [=] { xr::get_tensors_parallel(shareable, world, {.in_place = true}).close(); }, limits(1, 0, 0)},
      {"get_configs_parallel", bytes, [=] { gather({}); }, limits(1, n, 0)},
      {"get_configs_parallel to GPU", bytes, [=, gpu = rank.gpu] { gather({.to = gpu}); },
       limits(1, std::max(n, received), received)},
      // The file is written by another thread, which makes a stream that waits for the caller's.
      {"get_configs_parallel, files", bytes, [=] { gather({.workspace_path = folder + "/gather"}); }, limits(n, n, 1)},
      {"SharedMemoryWorkspace.write", bytes,
       [=]() mutable { memory.write_configs_and_weights(state.config, state.weights); }, limits(1, n, 0)},
      {"SharedMemoryWorkspace.read to GPU", bytes, [=] { read(memory); }, limits(0, n, n)},
      {"NFSWorkspace.write", bytes, [=]() mutable { files.write_configs_and_weights(state.config, state.weights); },
       limits(n, n, 0)},
      {"NFSWorkspace.read to GPU", bytes, [=] { read(files); }, limits(0, n, n)},
  };
}

bench::Row counted(Operation const& one, Rank const& rank, bench::GpuLog const& log) {
  auto const synchronized = [&] {
    xr::current_stream(rank.gpu).synchronize();
    rank.world.barrier();
  };
  // A GPU that lags behind needs more buffers than one that keeps up.
  for (int warm_up = 0; warm_up < 5; ++warm_up) one.call();
  synchronized();
  one.call();
  synchronized();
  log.reset();
  one.call();
  auto counts = log.counts();
  synchronized();
  return {.path = "device",
          .variant = one.name,
          .rank = rank.world.rank(),
          .ranks = rank.ranks,
          .bytes = one.bytes,
          .calls = 1,
          .backend = std::string(rank.world.device_backend()),
          .counts = std::move(counts),
          .limits = one.limits};
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  Rank rank;
  bench::GpuLog const log;
  auto decides = rank.floats(sizeof(float));
  rank.world.all_reduce(decides);
  rank.staged = rank.world.device_backend() == "staged";
  auto const folder = arguments.out + "-files";
  if (rank.world.rank() == 0) {
    std::filesystem::create_directories(folder + "/states");
    std::filesystem::create_directories(folder + "/gather");
  }
  rank.world.barrier();
  auto const queue = xr::MessageQueue::create(rank.world);
  std::vector<bench::Row> rows;
  for (auto const& operations : {reductions(rank), movements(rank), fused(rank), messages(rank, queue), experts(rank),
                                 on_the_gpu(rank), states(rank, folder)}) {
    for (auto const& one : operations) {
      if (arguments.only.empty() || arguments.only == one.name) rows.push_back(counted(one, rank, log));
    }
  }
  bench::append(arguments.out, rows);
  queue.close();
  rank.world.barrier();
  if (rank.world.rank() == 0) std::filesystem::remove_all(folder);
  rank.world.close();
}
