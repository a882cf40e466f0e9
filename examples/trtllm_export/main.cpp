// Does the post-processing that ModelOpt does before an engine is built: merges pipeline stages, then neighbouring
// tensor-parallel ranks, quantizes to FP8 with the scales from calibration, and writes a TensorRT-LLM checkpoint. Run
// it with `crossrank run -n 4 -- trtllm_export OUT [RANKS]`: two stages of two ranks, merged into RANKS (1 or 2)
// tensor-parallel ranks.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

#include <crossrank/crossrank.hpp>

#include "merge.hpp"
#include "model.hpp"
#include "pack.hpp"

namespace {

namespace fs = std::filesystem;
using namespace trtllm_export;

void export_checkpoint(xr::Collective const& world, fs::path const& out, int ranks) {
  int const stages = world.world_size() > 1 ? 2 : 1;
  int const tp = world.world_size() / stages;
  // The ranks along "in" are merged into rank "out" of the checkpoint. The last axis holds neighbours.
  xr::Mesh const mesh(world, {{"pp", stages}, {"out", ranks}, {"in", tp / ranks}});
  Place const place{mesh.coordinate("out") * (tp / ranks) + mesh.coordinate("in"), tp, mesh.coordinate("pp"), stages};
  Sizes const sizes;

  Model mine{.ends = make_ends(sizes, place)};
  auto const stage = layers_of(sizes, place.pp, stages);
  for (int number = stage.begin; number < stage.end; ++number) mine.layers.push_back(make_layer(sizes, number, place));

  auto const whole = merge_stages(mine, mesh["pp"]);
  if (place.pp == 0) {
    auto const merged = merge_ranks(whole, mesh["in"]);
    if (mesh.coordinate("in") == 0)
      xr::save_safetensors(out / ("rank" + std::to_string(mesh.coordinate("out")) + ".safetensors"), pack(merged));
  }
  world.barrier();  // write the config last: it marks the checkpoint as complete
  if (!world.is_master()) return;
  std::ofstream(out / "config.json") << describe(sizes, ranks).dump(2) << '\n';
  std::printf("%zu layers of %d stages x %d ranks, as %d ranks\n", whole.layers.size(), stages, tp, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  xr::Collective world;
  try {
    world = xr::connect();
    int const ranks = argc > 2 ? std::atoi(argv[2]) : 1;
    int const max = world.world_size() > 1 ? world.world_size() / 2 : 1;
    if (argc < 2 || ranks < 1 || max % ranks != 0 || (world.world_size() > 1 && world.world_size() % 2 != 0)) {
      if (world.is_master()) std::fprintf(stderr, "usage: trtllm_export OUT [RANKS], with 1 rank or an even number\n");
      return 2;
    }
    xr::zero_first(world, [&] { fs::create_directories(argv[1]); });
    export_checkpoint(world, argv[1], ranks);
    return 0;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "trtllm_export: %s\n", e.what());
    if (world.connected()) world.abort(e.what());
    return 1;
  }
}
