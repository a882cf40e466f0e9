#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/checkpoint/placements.hpp>
#include <crossrank/error.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "lib/codec/json/python_json.hpp"
#include "transforms/checkpoint/trained_state.hpp"
#include "transforms/model/common_values.hpp"
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
  if (shards.empty()) {
    throw UsageError({.operation = save_operation,
                      .message = "the model has neither parameters nor buffers",
                      .hint = "return them in `units()` of the model"});
  }
  for (auto const& shard : shards) {
    if (shard.name.starts_with(transforms::optimizer_prefix)) {
      throw UsageError({.operation = save_operation,
                        .message = "the name of a parameter begins like the names of the optimizer's state",
                        .resource = shard.name,
                        .hint = "rename the parameter"});
    }
    held.add(shard, shard.value);
  }
  if (optimizer == nullptr) return held;
  for (auto const& kinds : transforms::optimizer_tensors(*optimizer, shards)) {
    for (auto const& tensor : kinds) {
      // A parameter that never had a gradient has no state.
      if (auto const* const value = optimizer->state().find(tensor.key)) held.add(tensor.shard, *value);
    }
  }
  return held;
}

/// Replaces the buffers by copies of those of rank 0. They may differ, as statistics of the ranks' own batches do.
void take_buffers_of_rank_0(Collective const& group, TrainableModel const& model, HeldState& held) {
  std::vector<std::shared_ptr<Parameter>> copies;
  for (auto const& buffer : model.buffers()) {
    auto const& value = held.tensors.at(buffer->name);
    auto copy = value.device() == Device::cpu() ? value.clone() : value.to(Device::cpu());
    copies.push_back(std::make_shared<Parameter>(Parameter{.name = buffer->name, .value = std::move(copy)}));
  }
  if (copies.empty()) return;
  transforms::broadcast_values(group, copies);
  for (auto const& copy : copies) held.tensors.insert_or_assign(copy->name, copy->value);
}

/// Returns where a tensor goes in the dicts that torch restores.
checkpoint::DcpPath dcp_path(std::string const& name) {
  std::string_view const prefix = transforms::optimizer_prefix;
  if (!name.starts_with(prefix)) return {transforms::dcp_model_key, name};
  auto const dot = name.rfind('.');
  return {transforms::dcp_optimizer_key, "state", name.substr(prefix.size(), dot - prefix.size()),
          name.substr(dot + 1)};
}

checkpoint::DcpForm dcp_form(Optimizer const* optimizer) {
  checkpoint::DcpForm form{.path_of = dcp_path};
  if (optimizer == nullptr) return form;
  auto group = optimizer->param_group();
  if (group.empty()) return form;
  auto& parameters = group["params"] = Json::array();
  for (auto const& tensor : optimizer->model().trained_tensors()) parameters.push_back(tensor.name);
  for (auto const& [key, value] : group.items())
    form.values.push_back({.path = {transforms::dcp_optimizer_key, "param_groups", "0", key}, .value = value});
  return form;
}

/// `UsageError` if `load_checkpoint` would not read the text.
void require_loadable(std::string const& text) {
  ErrorInfo refused{.operation = save_operation,
                    .message = "the training state is too large",
                    .expected = "at most " + std::to_string(transforms::training_state_limits.bytes) + " bytes, " +
                                std::to_string(transforms::training_state_limits.values) + " values and " +
                                std::to_string(transforms::training_state_limits.depth) + " levels",
                    .got = std::to_string(text.size()) + " bytes",
                    .hint = "save large data in a file of its own"};
  if (text.size() > transforms::training_state_limits.bytes) throw UsageError(std::move(refused));
  try {
    static_cast<void>(codec::parse_python_json(text, {.limits = transforms::training_state_limits}));
  } catch (FormatError const& error) {
    refused.got = error.info().message;
    throw UsageError(std::move(refused));
  }
}

checkpoint::ExtraFile state_file(SaveCheckpointOptions const& options,
                                 std::span<checkpoint::OutputFile const> optimizer_files) {
  Json optimizer = nullptr;
  if (options.optimizer != nullptr) {
    auto names = Json::array();
    // A distributed checkpoint has no files of the optimizer alone.
    if (options.format == CheckpointFormat::hugging_face) {
      for (auto const& file : optimizer_files) names.push_back(file.name);
    }
    optimizer = {{"name", options.optimizer->name()}, {"steps", options.optimizer->steps()}, {"files", names}};
  }
  Json const state{{"optimizer", std::move(optimizer)}, {"training_state", options.training_state}};
  auto text = codec::to_python_json(state) + "\n";
  require_loadable(text);
  return {.name = transforms::training_state_name, .text = std::move(text)};
}

/// Returns what must be the same on all ranks of their optimizers.
checkpoint::NamedOptions options_of(Optimizer const* optimizer) {
  if (optimizer == nullptr) return {{"optimizer", "none"}};
  return {{"optimizer", std::string(optimizer->name())},
          {"steps of the optimizer", std::to_string(optimizer->steps())}};
}

}  // namespace

checkpoint::Summary save_checkpoint(Collective const& group, TrainableModel& model, std::filesystem::path const& out,
                                    SaveCheckpointOptions const& options) {
  auto const* const optimizer = options.optimizer;
  HeldState held;
  checkpoint::agree(group, save_operation, [&] { held = held_state(model, optimizer); });
  transforms::run_step(group, save_operation, [&] { take_buffers_of_rank_0(group, model, held); });
  checkpoint::ExportExtras extras{.prefix = transforms::optimizer_prefix,
                                  .stem = transforms::optimizer_stem,
                                  .files = [&](auto files) { return std::vector{state_file(options, files)}; },
                                  .may_replace_model = true,
                                  .options = options_of(optimizer)};
  if (options.format == CheckpointFormat::dcp) extras.dcp = dcp_form(optimizer);
  return checkpoint::export_weights(group, held.tensors, held.placements, out,
                                    {.model = {.directory = options.directory, .config = options.config},
                                     .max_shard_bytes = options.max_shard_bytes,
                                     .force = options.force,
                                     .on_progress = options.on_progress,
                                     .stop = options.stop},
                                    save_operation, extras);
}

}  // namespace crossrank
