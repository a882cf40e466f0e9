// Writes tensor-parallel weights from the memory of the ranks of this job as one checkpoint, and appends a row to a
// result file. The clock runs from the call until all files are durable.
//
// Usage: bench_export_memory FILE SHARDS OUT BYTES
//
// Reads rank<r>.safetensors and config.json of bench_make_shards into memory first.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <unistd.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/safetensors.hpp>

#include "bench/harness/harness.hpp"
#include "bench/harness/run_main.hpp"

namespace bench = crossrank::bench;
namespace fs = std::filesystem;
namespace xr = crossrank;

namespace {

void run(std::string const& file, fs::path const& shards, fs::path const& out, std::size_t bytes) {
  auto const world = xr::connect();
  auto const rank = world.rank();
  auto const weights = xr::load_safetensors(shards / ("rank" + std::to_string(rank) + ".safetensors"));
  xr::checkpoint::Placements const placements{.tp_rank = rank, .tp = world.world_size()};
  bench::UsageMeter const meter;
  bench::Row row{.path = "export",
                 .variant = "bf16",
                 .rank = rank,
                 .ranks = world.world_size(),
                 .bytes = bytes,
                 .payload = static_cast<double>(weights.nbytes())};
  if (rank == 0) ::sync();
  world.barrier();
  bench::PeakMemory const memory;
  bench::measure_once(row, meter, [&] {
    (void)xr::checkpoint::consolidate(world, weights, placements, out, {.model = {.directory = shards}});
  });
  row.peak_bytes = memory.growth();
  bench::append(file, {row});
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_main(argc, argv, "FILE SHARDS OUT BYTES", [](char** arguments) {
    run(arguments[1], arguments[2], arguments[3], std::strtoull(arguments[4], nullptr, 10));
    return 0;
  });
}
