#include <string>
#include <utility>

#include <crossrank/placements.hpp>
#include <crossrank/transforms_checkpoint.hpp>

#include "transforms/checkpoint/trained_state.hpp"
#include "workspace/checkpoint/memory/export_weights.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank {
namespace {

constexpr char const* save_operation = "save_checkpoint";

/// This rank's tensors, and how all ranks together hold them.
struct HeldState {
  StateDict tensors{};
  checkpoint::Placements placements{};

  void add(TensorShard const& shard, Tensor const& value) {
    placements.tensors[shard.name] = {.shape = shard.shape, .first_element = transforms::first_element(shard)};
    tensors.insert(shard.name, value);
  }
};

HeldState held_state(TrainableModel& model, Optimizer const* optimizer) {
  transforms::require_optimizer_of(model, optimizer, save_operation);
  HeldState held;
  auto const shards = model.sharded_state_dict();
  for (auto const& shard : shards) held.add(shard, shard.value);
  if (optimizer == nullptr) return held;
  for (auto const& kinds : transforms::optimizer_tensors(*optimizer, shards)) {
    for (auto const& tensor : kinds) {
      // A parameter that never had a gradient has no state.
      if (auto const* const value = optimizer->state().find(tensor.key)) held.add(tensor.shard, *value);
    }
  }
  return held;
}

checkpoint::ExtraFile state_file(SaveCheckpointOptions const& options,
                                 std::span<checkpoint::OutputFile const> optimizer_files) {
  Json optimizer = nullptr;
  if (options.optimizer != nullptr) {
    auto names = Json::array();
    for (auto const& file : optimizer_files) names.push_back(file.name);
    optimizer = {{"name", options.optimizer->name()}, {"steps", options.optimizer->steps()}, {"files", names}};
  }
  Json const text{{"optimizer", std::move(optimizer)}, {"training_state", options.training_state}};
  return {.name = transforms::training_state_name, .text = text.dump(2) + "\n"};
}

}  // namespace

checkpoint::Summary save_checkpoint(Collective const& group, TrainableModel& model, std::filesystem::path const& out,
                                    SaveCheckpointOptions const& options) {
  HeldState held;
  checkpoint::agree(group, save_operation, [&] { held = held_state(model, options.optimizer); });
  return checkpoint::export_weights(group, held.tensors, held.placements, out,
                                    {.model = {.directory = options.directory, .config = options.config},
                                     .max_shard_bytes = options.max_shard_bytes,
                                     .force = options.force,
                                     .on_progress = options.on_progress,
                                     .stop = options.stop},
                                    save_operation,
                                    {.prefix = transforms::optimizer_prefix,
                                     .stem = transforms::optimizer_stem,
                                     .files = [&](auto files) { return std::vector{state_file(options, files)}; }});
}

}  // namespace crossrank
