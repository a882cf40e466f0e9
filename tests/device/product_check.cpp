// Uses the library on GPUs: a program for `crossrank run` that runs on the emulated libraries and on real ones.
// tests/device/run starts it. Usage: product_check count | local | collectives BACKEND |
// gathers | death
#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::test {
namespace {

int failures = 0;

void check(bool holds, char const* claim) {
  if (holds) return;
  ++failures;
  std::printf("FAIL: %s\n", claim);
}

std::vector<float> elements(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const all = host.as<float>();
  return {all.begin(), all.end()};
}

Tensor on_gpu(std::int64_t count, float value, bool shareable = false) {
  auto tensor = Tensor::empty({count}, Dtype::f32, {.device = default_device(), .shareable = shareable});
  tensor.copy_from(Tensor::of(std::vector<float>(static_cast<std::size_t>(count), value), {count}));
  return tensor;
}

bool holds_only(Tensor const& tensor, float value) {
  return elements(tensor) == std::vector<float>(static_cast<std::size_t>(tensor.numel()), value);
}

constexpr std::int64_t count = 100'000;

/// Copies, slices and joins without other ranks, directly and in a graph.
void check_tensors() {
  std::vector<float> numbers(24);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  auto const matrix = Tensor::of(numbers, {4, 6}).to(default_device());
  check(elements(matrix) == numbers, "a copy to the GPU and back keeps the elements");
  auto const left = slice(matrix, {.dim = 1}, 0, 2);
  auto const right = slice(matrix, {.dim = 1}, 2, 4);
  check(elements(left) == std::vector<float>{0, 1, 6, 7, 12, 13, 18, 19}, "a slice along an inner dimension is right");
  check(elements(concat(std::vector{left, right}, {.dim = 1})) == numbers, "concat joins an inner dimension");

  auto const source = on_gpu(count, 1);
  auto target = Tensor::zeros({count}, Dtype::f32, default_device());
  auto const stream = Stream::create(default_device());
  current_stream(default_device()).synchronize();
  auto const graph = cuda::Graph::capture(stream, [&] { target.copy_from(source); });
  check(holds_only(target, 0), "a capture does nothing");
  graph.replay();
  check(holds_only(target, 1), "a replay copies");
}

void check_collectives(Collective const& world, std::string_view backend) {
  auto const ranks = static_cast<float>(world.world_size());
  auto const own = static_cast<float>(world.rank() + 1);
  auto sum = on_gpu(count, own);
  world.all_reduce(sum);
  if (world.device_backend() != backend) {
    std::printf("the backend is %s\n", std::string(world.device_backend()).c_str());
    check(false, "collectives use the expected backend");
  }
  check(holds_only(sum, ranks * (ranks + 1) / 2), "all_reduce is right");
  auto word = on_gpu(count, own);
  world.broadcast(word, {world.world_size() - 1});
  check(holds_only(word, ranks), "broadcast is right");
  if (backend != "nccl") return;

  std::vector<int> everyone(static_cast<std::size_t>(world.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const group = GroupCoordinator::create(world, {everyone}, {.device_communicator = true});
  auto input = on_gpu(count, own);
  group.device_group().all_reduce(input);  // a group of one rank makes its communicator here, not in the scope
  auto const scope = group.graph_capture();
  auto const graph = cuda::Graph::capture(scope.context().stream, [&] { group.device_group().all_reduce(input); });
  input.copy_from(on_gpu(count, 2));
  graph.replay();
  check(holds_only(input, 2 * ranks), "a replayed all_reduce is right");
}

void check_gathers(Collective const& world) {
  auto const mine = on_gpu(count, static_cast<float>(world.rank() + 1), true);
  for (bool const in_place : {false, true}) {
    GatherOptions options;
    options.to = in_place ? Device::cpu() : default_device();
    options.in_place = in_place;
    auto range = get_tensors_parallel(mine, world, options);
    float rank = 0;
    for (auto const& part : range) {
      ++rank;
      check(part.device().kind == Device::Kind::cuda, "a gathered tensor is on a GPU");
      check(holds_only(part, rank), in_place ? "a gather in place is right" : "a gather to a GPU is right");
    }
    if (world.rank() == 0) check(static_cast<int>(rank) == world.world_size(), "a gather has an item for each rank");
    range.close();
  }
}

/// Kills the last rank. The others check that the error names it.
void check_death(Collective const& world) {
  auto tensor = on_gpu(count, 1);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  int const victim = world.world_size() - 1;
  if (world.rank() == victim) std::raise(SIGKILL);
  try {
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
    check(false, "a collective without a killed rank is an error");
  } catch (PeerLostError const& e) {
    check(std::ranges::equal(e.failed_ranks(), std::vector{victim}), "the error names the killed rank");
  }
}

int run_part(std::string_view part, std::string_view backend) {
  cuda::require_driver();
  if (part == "count") {
    std::printf("%d\n", cuda::device_count());
    return 0;
  }
  if (cuda::device_count() == 0) {
    std::puts("FAIL: no GPU");
    return 1;
  }
  auto const world = connect({.timeout = std::chrono::seconds(60)});
  if (part == "local") check_tensors();
  if (part == "collectives") check_collectives(world, backend);
  if (part == "gathers") check_gathers(world);
  if (part == "death") check_death(world);
  if (failures == 0) {
    std::printf("rank %d of %d: %s ok, collectives by %s\n", world.rank(), world.world_size(),
                std::string(part).c_str(), std::string(world.device_backend()).c_str());
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace crossrank::test

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return crossrank::test::run_part(argv[1], argc > 2 ? argv[2] : "");
  } catch (std::exception const& e) {
    std::printf("FAIL: %s\n", e.what());
    return 1;
  }
}
