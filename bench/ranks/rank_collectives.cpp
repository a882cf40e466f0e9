// Runs the operations of Collective over all ranks of a job, on F32, back to back. Checks the results before and after.
// Then runs broadcasts of 4 KiB to 1 MiB on memory that is not page-aligned.
//
// Usage: bench_rank_collectives --out FILE [--quick] [--only OPERATION|offsets] -- SIZES...
//
// A size is that of the whole: the output of all_gather, the input of reduce_scatter and all_to_all.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

#include "bench/harness/collective_data.h"
#include "bench/harness/consume.h"
#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace xr = crossrank;

namespace {

/// One operation on buffers of one size.
struct Case {
  enum bench_operation operation;
  std::function<void(xr::Tensor& out, xr::Tensor& in)> call;
};

xr::Tensor floats(std::size_t count) { return xr::Tensor::zeros({static_cast<std::int64_t>(count)}, xr::Dtype::f32); }

void checked_call(Case const& one, xr::Collective const& world, xr::Tensor& out, xr::Tensor& in) {
  int const rank = world.rank();
  int const ranks = world.world_size();
  auto const given = in.as_mutable<float>();
  bench_give(one.operation, given.data(), given.size(), rank);
  if (&out != &in) {
    for (auto& value : out.as_mutable<float>()) value = -1;
  }
  one.call(out, in);
  auto const got = out.as<float>();
  bench::require(bench_is_right(one.operation, got.data(), got.size(), rank, ranks) != 0, "wrong result of ",
                 bench_operation_name(one.operation));
}

bench::Row measured(Case const& one, xr::Collective const& world, bench::UsageMeter const& meter, std::size_t bytes,
                    bool quick) {
  auto const ranks = static_cast<std::size_t>(world.world_size());
  auto const count = bytes / sizeof(float);
  auto in = floats(bench_counts_in(one.operation, count, ranks));
  bool const in_place = bench_in_place(one.operation) != 0;
  auto separate = in_place ? xr::Tensor() : floats(bench_counts_out(one.operation, count, ranks));
  auto& out = in_place ? in : separate;
  checked_call(one, world, out, in);
  bench::Row row{.path = "collectives",
                 .variant = bench_operation_name(one.operation),
                 .rank = world.rank(),
                 .ranks = world.world_size(),
                 .bytes = bytes};
  auto const batch = bench_batch(bytes);
  for (std::size_t i = 0; i < 2 * batch; ++i) one.call(out, in);
  bench::measure(row, meter, bench_samples(bytes, quick ? 1 : 0), batch, 0, [&](std::uint64_t) { one.call(out, in); });
  checked_call(one, world, out, in);
  return row;
}

/// Measures a broadcast on memory of the caller that starts `offset` bytes after a page boundary. Large heap blocks
/// start at offset 16, their parts anywhere. A receiver copies from an arena, where payloads of these sizes are
/// page-aligned.
bench::Row broadcast_behind_page(xr::Collective const& world, bench::UsageMeter const& meter, std::size_t bytes,
                                 std::size_t offset, bool quick) {
  constexpr std::size_t page = 4096;
  std::vector<std::byte> buffer(bytes + 2 * page);
  auto const behind = reinterpret_cast<std::uintptr_t>(buffer.data()) % page;
  auto* const at = buffer.data() + (page - behind) + offset;
  auto tensor = xr::Tensor::from_blob(at, {static_cast<std::int64_t>(bytes / sizeof(float))}, xr::Dtype::f32);
  Case const one{bench_broadcast, [&](xr::Tensor& out, xr::Tensor&) { world.broadcast(out); }};
  checked_call(one, world, tensor, tensor);
  bench::Row row{.path = "collectives",
                 .variant = "broadcast, page+" + std::to_string(offset),
                 .rank = world.rank(),
                 .ranks = world.world_size(),
                 .bytes = bytes};
  auto const batch = bench_batch(bytes);
  for (std::size_t i = 0; i < 2 * batch; ++i) world.broadcast(tensor);
  bench::measure(row, meter, bench_samples(bytes, quick ? 1 : 0), batch, 0,
                 [&](std::uint64_t) { world.broadcast(tensor); });
  checked_call(one, world, tensor, tensor);
  return row;
}

std::vector<bench::Row> broadcasts_behind_pages(xr::Collective const& world, bench::UsageMeter const& meter,
                                                bool quick) {
  std::vector<bench::Row> rows;
  for (std::size_t bytes = std::size_t{4} << 10; bytes <= std::size_t{1} << 20; bytes *= 4) {
    for (std::size_t const offset : {0U, 8U, 16U, 64U})
      rows.push_back(broadcast_behind_page(world, meter, bytes, offset, quick));
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  auto const sizes = bench::sizes_in(argc, argv);
  auto const arguments = bench::parse(argc - static_cast<int>(sizes.size()) - 1, argv);
  auto world = xr::connect();
  bench::UsageMeter const meter;
  std::vector<Case> const cases{
      {bench_all_reduce, [&](xr::Tensor& out, xr::Tensor&) { world.all_reduce(out); }},
      {bench_all_gather, [&](xr::Tensor& out, xr::Tensor& in) { world.all_gather(out, in); }},
      {bench_broadcast, [&](xr::Tensor& out, xr::Tensor&) { world.broadcast(out); }},
      {bench_reduce_scatter, [&](xr::Tensor& out, xr::Tensor& in) { world.reduce_scatter(out, in); }},
      {bench_all_to_all, [&](xr::Tensor& out, xr::Tensor& in) { world.all_to_all(out, in); }},
  };
  for (int i = 0; i < bench_first_barriers; ++i) world.barrier();
  for (auto const bytes : sizes) {
    std::vector<bench::Row> rows;
    for (auto const& one : cases) {
      if (arguments.only.empty() || arguments.only == bench_operation_name(one.operation))
        rows.push_back(measured(one, world, meter, bytes, arguments.quick));
    }
    bench::append(arguments.out, rows);
  }
  if (arguments.only.empty() || arguments.only == "offsets")
    bench::append(arguments.out, broadcasts_behind_pages(world, meter, arguments.quick));
  world.close();
}
