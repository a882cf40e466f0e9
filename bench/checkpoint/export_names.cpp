// Exports many small tensors from the memory of the ranks of this job, and appends a row to a result file: the time,
// and the memory of a rank that the names, shapes and plans of all tensors need.
//
// Usage: bench_export_names FILE TENSORS OUT
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <crossrank/crossrank.hpp>
#include <crossrank/checkpoint/memory_export.hpp>

#include "bench/harness/harness.hpp"
#include "bench/harness/run_main.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

/// Returns this rank's pieces of matrices whose rows are spread over all ranks. Experts have names of their own.
xr::StateDict pieces(std::size_t count) {
  constexpr std::size_t experts = 256;
  constexpr std::int64_t columns = 16;
  xr::StateDict weights;
  constexpr std::array parts{"gate", "up", "down"};
  for (std::size_t i = 0; i < count; ++i) {
    auto const expert = i / parts.size();
    auto const name = "model.layers." + std::to_string(expert / experts) + ".mlp.experts." +
                      std::to_string(expert % experts) + "." + parts.at(i % parts.size()) + "_proj.weight";
    weights.insert(name, xr::Tensor::zeros({1, columns}, xr::Dtype::bf16));
  }
  return weights;
}

void run(std::string const& file, std::size_t tensors, std::filesystem::path const& out) {
  auto const world = xr::connect();
  auto const weights = pieces(tensors);
  xr::checkpoint::Placements const placements{.otherwise = {.placements = {xr::checkpoint::Shard{0}}}};
  bench::UsageMeter const meter;
  bench::Row row{
      .path = "export_names", .variant = "fsdp", .rank = world.rank(), .ranks = world.world_size(), .bytes = tensors};
  world.barrier();
  bench::PeakMemory const memory;
  bench::measure_once(row, meter, [&] { (void)xr::checkpoint::consolidate(world, weights, placements, out); });
  row.peak_bytes = memory.growth();
  bench::append(file, {row});
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main(argc, argv, "FILE TENSORS OUT", [](char** arguments) {
    run(arguments[1], std::strtoull(arguments[2], nullptr, 10), arguments[3]);
    return 0;
  });
}
