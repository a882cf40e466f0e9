// The copy kernels, in one process with warm memory.
#include <cstdlib>
#include <cstring>
#include <vector>

#include <benchmark/benchmark.h>

#include "lib/tensor/streaming_copy.hpp"

namespace xr = crossrank;

namespace {

void copy(benchmark::State& state, xr::CopyKernel kernel) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> const from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    xr::copy_with(kernel, to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  if (to != from) state.SkipWithError("a copy differs from its source");
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
}

void copy_by_threshold(benchmark::State& state) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> const from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    xr::copy_bytes(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  if (to != from) state.SkipWithError("a copy differs from its source");
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
}

}  // namespace

int main(int argc, char** argv) {
  for (auto const kernel :
       {xr::CopyKernel::standard, xr::CopyKernel::sse2, xr::CopyKernel::avx2, xr::CopyKernel::avx512}) {
    if (!xr::has_kernel(kernel)) continue;
    auto const name = "copy/" + std::string(to_string(kernel));
    benchmark::RegisterBenchmark(name.c_str(), copy, kernel)->RangeMultiplier(16)->Range(4096, 64 << 20);
  }
  benchmark::RegisterBenchmark("copy/automatic", copy_by_threshold)->RangeMultiplier(16)->Range(4096, 64 << 20);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
