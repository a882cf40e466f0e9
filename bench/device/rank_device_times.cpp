// Measures on real GPUs: how long a call takes the host, beside a call of NCCL on the same communicator, and how fast a
// gather reads GPU memory, beside the copy alone. Says why on stdout and ends with 77 where that cannot be measured.
//
// Usage: bench_rank_device_times --out FILE [--quick]
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/spi/transport.hpp>

#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

constexpr int skipped = 77;
constexpr std::size_t batch = 20;

template <class Function>
Function* find(std::string const& library, char const* name) {
  auto* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  bench::require(opened != nullptr, "cannot open ", library);
  auto* const found = ::dlsym(opened, name);
  bench::require(found != nullptr, library, " has no ", name);
  return reinterpret_cast<Function*>(found);
}

/// Makes the GPU current in this thread, for direct calls of the driver and of NCCL.
void use_gpu(xr::Device gpu) {
  auto const driver = xr::cuda::driver_info().path;
  void* context = nullptr;
  bench::require(find<int(void**, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, gpu.index) == 0, "no context");
  bench::require(find<int(void*)>(driver, "cuCtxSetCurrent")(context) == 0, "the context cannot be made current");
}

bench::Row row_of(xr::Collective const& world, char const* who, std::string variant, std::size_t bytes) {
  return {.path = "device_time",
          .who = who,
          .variant = std::move(variant),
          .rank = world.rank(),
          .ranks = world.world_size(),
          .bytes = bytes,
          .backend = std::string(world.device_backend())};
}

/// Measures the time until all_reduce has been enqueued: ours as users call it, with the comparison of arguments in
/// shared memory, ours without it, and NCCL's own.
std::vector<bench::Row> enqueue_times(xr::Collective const& world, bench::UsageMeter const& meter,
                                      std::size_t samples) {
  constexpr std::size_t bytes = 4096;
  auto const gpu = xr::default_device();
  auto tensor = xr::Tensor::zeros({bytes / sizeof(float)}, xr::Dtype::f32, gpu);
  world.all_reduce(tensor);
  auto const stream = xr::current_stream(gpu);
  auto const drain = [&] {
    stream.synchronize();
    world.barrier();
  };
  drain();
  auto const unchecked = xr::make_collective(world.transport(), world.timeout_policy(), xr::CheckLevel::off);
  unchecked.all_reduce(tensor);
  drain();
  std::vector<bench::Row> rows{row_of(world, "crossrank", "enqueue of all_reduce, compared", bytes),
                               row_of(world, "crossrank", "enqueue of all_reduce", bytes)};
  bench::measure(
      rows[0], meter, samples, batch, 0, [&](std::uint64_t) { world.all_reduce(tensor); }, drain);
  bench::measure(
      rows[1], meter, samples, batch, 0, [&](std::uint64_t) { unchecked.all_reduce(tensor); }, drain);
  auto const group = xr::nccl::process_group(world);
  if (!group) {
    std::printf("skipped: NCCL's own all_reduce, because the collectives are %s\n",
                std::string(world.device_backend()).c_str());
    return rows;
  }
  auto const library = xr::nccl::library_info().path;
  using AllReduce = int(void const*, void*, std::size_t, int, int, ncclComm*, CUstream_st*);
  using AsyncError = int(ncclComm*, int*);
  auto* const all_reduce = find<AllReduce>(library, "ncclAllReduce");
  auto* const async_error = find<AsyncError>(library, "ncclCommGetAsyncError");
  auto* const communicator = xr::nccl::communicator_of(*group);
  constexpr int in_progress = 7;
  constexpr int f32 = 7;
  constexpr int sum = 0;
  auto const call = [&](std::uint64_t) {
    auto result = all_reduce(tensor.data(), tensor.data(), bytes / sizeof(float), f32, sum, communicator,
                             xr::cuda::native(stream));
    while (result == in_progress) bench::require(async_error(communicator, &result) == 0, "NCCL has failed");
    bench::require(result == 0, "ncclAllReduce has failed");
  };
  rows.push_back(row_of(world, "nccl", "enqueue of all_reduce", bytes));
  bench::measure(rows.back(), meter, samples, batch, 0, call, drain);
  return rows;
}

/// Measures a gather of one tensor of each rank, and the copy to page-locked memory alone.
std::vector<bench::Row> gather_times(xr::Collective const& world, bench::UsageMeter const& meter, std::size_t samples) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  auto const gpu = xr::default_device();
  auto const tensor = xr::Tensor::zeros({bytes}, xr::Dtype::u8, gpu);
  auto const stream = xr::current_stream(gpu);
  auto const gather = [&](std::uint64_t) { xr::get_tensors_parallel(tensor, world).close(); };
  for (std::uint64_t warm_up = 0; warm_up < 3; ++warm_up) gather(warm_up);
  std::vector<bench::Row> rows{row_of(world, "crossrank", "gather", bytes)};
  bench::measure(rows.back(), meter, samples, 1, 0, gather, [&] { world.barrier(); });
  auto const pinned = xr::Tensor::empty({bytes}, xr::Dtype::u8, xr::MemoryOptions{.pinned = true});
  using Copy = int(void*, unsigned long long, std::size_t, CUstream_st*);
  auto* const copy = find<Copy>(xr::cuda::driver_info().path, "cuMemcpyDtoHAsync_v2");
  auto const copy_alone = [&](std::uint64_t) {
    // The receiver's own tensor is not copied.
    if (world.rank() != 0 || world.world_size() == 1) {
      auto const from = reinterpret_cast<unsigned long long>(tensor.data());
      bench::require(copy(pinned.data(), from, bytes, xr::cuda::native(stream)) == 0, "the copy has failed");
      stream.synchronize();
    }
    world.barrier();
  };
  rows.push_back(row_of(world, "pcie", "gather", bytes));
  bench::measure(rows.back(), meter, samples, 1, 0, copy_alone, [&] { world.barrier(); });
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = bench::parse(argc, argv);
  try {
    xr::cuda::require_driver();
  } catch (xr::UnavailableError const& error) {
    std::printf("skipped: times on GPUs: %s\n", error.what());
    return skipped;
  }
  if (xr::cuda::device_count() == 0) {
    std::printf("skipped: times on GPUs: this machine has none\n");
    return skipped;
  }
  auto const world = xr::connect();
  use_gpu(xr::default_device());
  bench::UsageMeter const meter;
  auto rows = enqueue_times(world, meter, arguments.quick ? 10 : 50);
  if (world.world_size() > 1) {
    for (auto& row : gather_times(world, meter, arguments.quick ? 5 : 20)) rows.push_back(std::move(row));
  }
  bench::append(arguments.out, rows);
  world.barrier();
}
