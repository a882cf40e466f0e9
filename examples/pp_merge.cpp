// Collects the layers of all pipeline stages on the first stage, in model order, through a shared directory. Run it
// with `crossrank run -n 4 -- pp_merge`: two stages of two tensor-parallel ranks.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shared_folder.hpp"

std::vector<xr::RankState> merge_stages(std::span<xr::RankState const> mine, xr::Mesh const& mesh,
                                        xr::NFSWorkspace const& ws) {
  auto const& pp = mesh["pp"];
  std::vector<std::vector<xr::RankState>> by_stage(static_cast<std::size_t>(pp.world_size()));
  for (auto const& layer : mine) {  // a stage with fewer layers passes {} as padding
    std::size_t stage = 0;
    for (auto& entry : xr::get_configs_parallel(layer, pp, {.workspace = ws}).take()) {
      by_stage[stage++].push_back(std::move(entry.state));
    }
  }
  std::vector<xr::RankState> all;
  for (auto& stage : by_stage) {
    for (auto& layer : stage) {
      if (!layer.config.is_null()) all.push_back(std::move(layer));  // drop the padding of shorter stages
    }
  }
  return all;
}

/// Returns the layers of a stage: layers 0 and 1 on the first stage, layer 2 and a padding {} on the second.
std::vector<xr::RankState> layers_of(int stage) {
  std::vector<xr::RankState> layers;
  for (int number = 2 * stage; number < 2 * stage + 2; ++number) {
    xr::RankState layer;
    if (number < 3) {
      layer.config = {{"layer", number}, {"dropout", 0.5}};
      layer.weights.insert_or_assign("weight",
                                     xr::Tensor::of<float>(std::vector<float>(8, static_cast<float>(number)), {2, 4}));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

int main() {
  auto const world = xr::connect();
  int const stages = world.world_size() > 1 ? 2 : 1;
  xr::Mesh const mesh(world, {{"pp", stages}, {"tp", world.world_size() / stages}});
  SharedFolder const folder(world);
  xr::NFSWorkspace workspace(folder.path() / "exchange");

  auto const model = merge_stages(layers_of(mesh.coordinate("pp")), mesh, workspace);
  for (auto const& layer : model) {
    std::printf("tp %d: layer %d, first weight %.1f\n", mesh.coordinate("tp"), layer.config.at("layer").get<int>(),
                static_cast<double>(layer.weights.at("weight").as<float>()[0]));
  }
  workspace.clean();
  world.barrier();  // all ranks are done before the folder is removed
}
