// One step of a tensor-parallel model whose tensors are on GPUs: rank 0 sends the batch, the ranks add up their partial
// results, a graph repeats that for new inputs, and rank 0 gathers the results on its own GPU. Run it with
// `crossrank run -n 2 -- gpu_step`. Without a GPU the same calls work on the CPU, except for the graph.
#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

/// Returns whether all elements are `value`. Copies a tensor on a GPU to the host and waits for it.
bool is_filled(xr::Tensor const& tensor, float value) {
  auto const host = tensor.to(xr::Device::cpu());
  return std::ranges::all_of(host.as<float>(), [&](float each) { return each == value; });
}

/// Captures the reduction of `input` once, and replays it for new inputs. Returns whether all results are right.
bool replay_reductions(xr::GroupCoordinator const& tp, xr::Tensor input) {
  auto const ranks = static_cast<float>(tp.world_size());
  auto const scope = tp.graph_capture();  // a stream for captures; makes the communicator
  auto const graph = xr::cuda::Graph::capture(scope.context().stream, [&] { tp.device_group().all_reduce(input); });
  bool right = true;
  for (float const value : {2.0F, 3.0F}) {
    input.copy_from(xr::Tensor::of(std::vector<float>(8, value), {8}));
    graph.replay();
    right = is_filled(input, value * ranks) && right;
  }
  return right;
}

int main() {
  auto const world = xr::connect();
  auto const device = xr::default_device();  // the GPU of this rank's place on the node, or the CPU
  std::vector<int> everyone(static_cast<std::size_t>(world.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const tp = xr::GroupCoordinator::create(world, {everyone}, {.name = "tp", .device_communicator = true});

  xr::TensorDict batch;
  if (tp.is_first_rank()) {
    batch = {{"step", 7}, {"hidden", xr::Tensor::of(std::vector<float>(8, 1.0F), {8}).to(device)}};
  }
  batch = tp.broadcast_tensor_dict(std::move(batch));
  auto const hidden = batch.tensor("hidden");  // on the device of this rank

  auto const sum = tp.all_reduce(hidden);  // in the order of the current stream; the host does not wait for the GPU
  std::string const backend(tp.device_group().device_backend());  // "nccl" or "staged" on a GPU
  bool const reduced = is_filled(sum, static_cast<float>(tp.world_size()));
  std::printf("rank %d on %s: step %d, sum %s\n", tp.rank(), to_string(hidden.device()).c_str(), batch.get<int>("step"),
              reduced ? "right" : "wrong");

  bool replayed = true;
  if (backend == "nccl") replayed = replay_reductions(tp, hidden.clone());

  xr::GatherOptions options;
  options.to = device;  // the default is the CPU
  auto const parts = xr::get_tensors_parallel(sum, tp, options).take();
  bool gathered = true;
  if (tp.is_first_rank()) {
    auto const joined = xr::concat(parts, {.dim = 0});
    gathered = is_filled(joined, static_cast<float>(tp.world_size()));
    if (device == xr::Device::cpu()) std::puts("no GPU found: everything ran on the CPU (see crossrank doctor)");
    std::printf("collectives by %s, graph %s, gathered %s %s\n", device == xr::Device::cpu() ? "cpu" : backend.c_str(),
                backend != "nccl" ? "left out" : (replayed ? "right" : "wrong"), to_string(joined).c_str(),
                gathered ? "right" : "wrong");
  }
  return reduced && replayed && gathered ? 0 : 1;
}
