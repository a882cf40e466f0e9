// Writes weights that are sharded over the ranks as one checkpoint, without shards on disk.
// Usage: crossrank run -n 2 -- memory_export OUT
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>

#include <crossrank/crossrank.hpp>

namespace {

/// Returns this rank's rows of a matrix of 10 rows and 4 columns, sharded as FSDP shards it.
xr::Tensor own_rows(xr::Collective const& world) {
  std::int64_t const chunk = (10 + world.world_size() - 1) / world.world_size();
  auto const first = std::min<std::int64_t>(10, world.rank() * chunk);
  auto const last = std::min<std::int64_t>(10, first + chunk);
  auto rows = xr::Tensor::empty({last - first, 4}, xr::Dtype::f32);
  auto number = static_cast<float>(first * 4);
  for (auto& value : rows.as_mutable<float>()) value = number++;
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: memory_export OUT\n";
    return 2;
  }
  try {
    auto const world = xr::connect();
    xr::StateDict weights{{"layer.weight", own_rows(world)}, {"layer.bias", xr::Tensor::zeros({4}, xr::Dtype::f32)}};
    xr::checkpoint::Placements placements;
    placements.tensors["layer.weight"] = {.placements = {xr::checkpoint::Shard{0}}};  // the bias is replicated
    auto request = xr::checkpoint::iconsolidate(world, weights, placements, argv[1], {.write = {.force = true}});
    weights.clear();  // training may go on
    auto const summary = request.wait();
    auto const whole = xr::load_safetensors(std::filesystem::path(argv[1]) / "model.safetensors");
    if (world.is_master())
      std::cout << summary.files << " file, layer.weight " << xr::to_string(whole.at("layer.weight").shape()) << "\n";
  } catch (xr::Error const& error) {
    std::cerr << error.report();
    return 1;
  }
  return 0;
}
