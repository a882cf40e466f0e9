// Runs get_tensors_parallel over all ranks of a job: each rank contributes one tensor, the first rank receives all.
//
// Usage: bench_rank_gather --out FILE [--quick] [--only VARIANT] -- SIZES...
//
// Variants: "cold", the first call of a size; "warm", tensors in ordinary memory; "arena-backed", tensors in shared
// memory. The consumer reads the first word of each item, or every byte.
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

class Gather {
 public:
  Gather(xr::Collective world, xr::Tensor mine)
      : world_(std::move(world)), mine_(std::move(mine)), bytes_(mine_.nbytes()) {
    writable_ = mine_.mutable_bytes().data();
    bench_fill(writable_, bytes_, world_.rank());
    bench_stamp(writable_, bytes_, 0);
    for (int rank = 0; rank < world_.world_size(); ++rank) {
      std::vector<std::byte> theirs(bytes_);
      bench_fill(theirs.data(), bytes_, rank);
      bench_stamp(theirs.data(), bytes_, 0);
      sums_.push_back(bench_sum(theirs.data(), bytes_));
    }
  }

  /// Makes one call with `number` in the first word of the tensor; 0 leaves the tensor unchanged.
  void call(std::uint64_t number, bool reads) {
    if (number != 0) bench_stamp(writable_, bytes_, number);
    auto items = xr::get_tensors_parallel(mine_, world_);
    for (std::size_t rank = 1; rank < items.size(); ++rank) check(items[rank].bytes(), rank, number, reads);
    items.close();
  }

 private:
  void check(std::span<std::byte const> item, std::size_t rank, std::uint64_t number, bool reads) const {
    bench::require(item.size() == bytes_ && bench_read_stamp(item.data(), bytes_) == number,
                   "received the bytes of another call");
    if (reads) bench::require(bench_sum(item.data(), bytes_) == sums_[rank] + number, "received wrong bytes");
  }

  xr::Collective world_;
  xr::Tensor mine_;
  std::size_t bytes_;
  std::byte* writable_ = nullptr;
  std::vector<std::uint64_t> sums_{};
};

void run_size(std::size_t bytes, xr::Collective const& world, bench::UsageMeter const& meter,
              bench::Arguments const& arguments) {
  auto const wanted = [&](char const* variant) { return arguments.only.empty() || arguments.only == variant; };
  bench::Row const base{.path = "gather", .rank = world.rank(), .ranks = world.world_size(), .bytes = bytes};
  auto const batch = bench_batch(bytes);
  auto const samples = bench_samples(bytes, arguments.quick ? 1 : 0);
  xr::Shape const shape{static_cast<std::int64_t>(bytes)};
  std::vector<bench::Row> rows;
  auto const sweep = [&](Gather& gather, char const* variant, bool stamps) {
    for (bool const reads : {false, true}) {
      auto row = base;
      row.variant = variant;
      row.reads = reads;
      row.payload = stamps && world.rank() != 0 ? static_cast<double>(bytes) : 0.0;
      std::uint64_t number = 1;
      for (std::size_t i = 0; i < 8 * batch; ++i, ++number) gather.call(stamps ? number : 0, reads);
      bench::measure(row, meter, samples, batch, number, [&](std::uint64_t n) { gather.call(stamps ? n : 0, reads); });
      rows.push_back(row);
    }
  };
  if (wanted("cold") || wanted("warm")) {
    Gather gather(world, xr::Tensor::empty(shape, xr::Dtype::u8));
    world.barrier();
    auto cold = base;
    cold.variant = "cold";
    cold.payload = world.rank() != 0 ? static_cast<double>(bytes) : 0.0;
    bench::measure_once(cold, meter, [&] { gather.call(1, false); });
    rows.push_back(cold);
    if (wanted("warm")) sweep(gather, "warm", true);
  }
  if (wanted("arena-backed")) {
    xr::SharedMemoryWorkspace workspace(world);
    Gather gather(world, workspace.empty(shape, xr::Dtype::u8));
    sweep(gather, "arena-backed", false);
  }
  bench::append(arguments.out, rows);
}

}  // namespace

int main(int argc, char** argv) {
  int split = 1;
  while (split < argc && std::strcmp(argv[split], "--") != 0) ++split;
  auto const arguments = bench::parse(split, argv);
  auto world = xr::connect();
  bench::UsageMeter const meter;
  for (int i = split + 1; i < argc; ++i) {
    run_size(static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10)), world, meter, arguments);
  }
  world.close();
}
