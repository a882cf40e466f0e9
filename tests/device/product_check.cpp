// Uses the library on GPUs: a program for `crossrank run` that runs on the emulated libraries and on real ones.
// tests/device/run starts it. Usage: product_check count | local | collectives BACKEND |
// gathers | death
#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/spi/device_provider.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
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

/// Returns elements with random bits.
Tensor random_bits(std::int64_t elements, Dtype dtype, int seed) {
  auto tensor = Tensor::empty({elements}, dtype);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (auto& byte : tensor.mutable_bytes()) byte = static_cast<std::byte>(random());
  return tensor;
}

bool same_bits(Tensor const& on_gpu, Tensor const& expected) {
  return std::ranges::equal(on_gpu.to(Device::cpu()).bytes(), expected.bytes());
}

/// Converts all dtypes to all dtypes, by a kernel and by the CPU.
void check_conversions() {
  check(spi::device_provider(Device::Kind::cuda).has_kernels(default_device()), "the driver loads the kernels");
  for (std::size_t from = 0; from < dtype_count; ++from) {
    for (std::size_t to = 0; to < dtype_count; ++to) {
      auto const host = random_bits(4'000, static_cast<Dtype>(from), 1);
      try {
        auto const expected = host.to(static_cast<Dtype>(to));
        auto const claim = "a conversion of " + std::string(name_of(host.dtype())) + " to " +
                           std::string(name_of(expected.dtype())) + " has the bits of the CPU";
        check(same_bits(host.to(default_device()).to(expected.dtype()), expected), claim.c_str());
      } catch (UsageError const&) {  // a packed or complex dtype
      }
    }
  }
}

/// Reduces the same values on the CPU and on the GPU. Sums of F32 and F64 depend on the order here. There is no NaN,
/// whose bits may differ.
void check_rank_order(Collective const& world) {
  for (auto const dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3, Dtype::i16, Dtype::u64}) {
    bool const is_integer = dtype == Dtype::i16 || dtype == Dtype::u64;
    for (auto const op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, is_integer ? ReduceOp::bxor : ReduceOp::avg}) {
      for (std::int64_t const elements : {37, 50'001}) {
        auto const source = dtype == Dtype::f32 ? Dtype::i32 : dtype == Dtype::f64 ? Dtype::i64 : Dtype::i8;
        auto expected = random_bits(elements, source, world.rank()).to(dtype);
        auto reduced = expected.to(default_device());
        world.all_reduce(expected, op);
        world.all_reduce(reduced, op, ReduceOrder::rank);
        auto const claim = "a reduction of " + std::string(name_of(dtype)) + " by op " +
                           std::to_string(static_cast<int>(op)) + " in rank order has the bits of the CPU";
        check(same_bits(reduced, expected), claim.c_str());
      }
    }
  }
}

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
  check_rank_order(world);
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

/// Sends long messages in a ring. The first one of a pair goes through host memory, later ones from GPU to GPU.
void check_messages(Collective const& world) {
  int const next = (world.rank() + 1) % world.world_size();
  int const previous = (world.rank() + world.world_size() - 1) % world.world_size();
  for (int i = 0; i < 40; ++i) {
    auto const value = static_cast<float>(100 * i + world.rank());
    auto sent = on_gpu(count, value);
    auto received = on_gpu(count, -1);
    auto sending = world.isend(sent, next);
    world.recv(received, previous);
    sending.wait();
    check(holds_only(received, static_cast<float>(100 * i + previous)), "a message between GPUs is right");
  }
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
  if (part == "local") {
    check_tensors();
    check_conversions();
  }
  if (part == "collectives") check_collectives(world, backend);
  if (part == "collectives") check_messages(world);
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
