// Merges the shards of a checkpoint, whichever program wrote them. Run `consolidate SHARDS OUT` alone, or with several
// processes: `crossrank run -n 4 -- consolidate SHARDS OUT`.
#include <crossrank/checkpoint.hpp>

#include <crossrank/crossrank.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: consolidate SHARDS OUT\n"), 2;
  auto const world = xr::connect();
  try {
    auto const plan = xr::checkpoint::MergePlan::make(world, argv[1]);
    auto const done = xr::checkpoint::consolidate(world, plan, argv[2], {.max_shard_bytes = 5'000'000'000});
    if (world.is_master())
      std::printf("%zu tensors in %d file%s, %llu bytes\n", plan.tensors().size(), done.files,
                  done.files == 1 ? "" : "s", static_cast<unsigned long long>(done.bytes));
  } catch (xr::Error const& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
}
