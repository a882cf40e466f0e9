// Joins one layer from the configs and weights of all ranks, on rank 0. Run it with `crossrank run -n 4 -- configs`, or
// add a directory, through which the states then travel.
#include <crossrank/crossrank.hpp>

#include <cstdio>
#include <stdexcept>
#include <vector>

namespace {

/// Returns this rank's part of the layer: two rows of its weight, and a config that describes them.
xr::RankState make_part(int rank) {
  xr::RankState part;
  part.config = {{"layer", "mlp.up_proj"}, {"rows", 2}, {"dropout", 0.1}};
  part.weights["weight"] = xr::Tensor::of(std::vector<float>(8, static_cast<float>(rank)), {2, 4});
  return part;
}

/// Joins the parts in rank order; throws when two of them are not of the same layer.
xr::RankState join(xr::CollectiveRange<xr::RankedState>& parts) {
  xr::RankState whole;
  std::vector<xr::Tensor> weights;
  for (auto const& [rank, part] : parts) {
    if (rank == 0) whole.config = part.config;
    if (part.config.at("layer") != whole.config.at("layer")) throw std::runtime_error("the layers differ");
    weights.push_back(part.weights.at("weight"));
  }
  if (weights.empty()) return whole;  // rank 0 receives, the others do not
  whole.weights["weight"] = xr::concat(weights, {.dim = 0});
  whole.config["rows"] = whole.weights.at("weight").shape()[0];
  return whole;
}

}  // namespace

int main(int argc, char** argv) {
  auto const world = xr::connect();
  xr::GatherOptions options;
  if (argc > 1) options.workspace_path = argv[1];

  auto const part = make_part(world.rank());
  auto parts = xr::get_configs_parallel(part, world, options);
  auto const whole = parts.consume([](auto& open) { return join(open); });

  if (world.is_master())
    std::printf("%s: %s\n", whole.config.dump().c_str(), to_string(whole.weights.at("weight")).c_str());
}
