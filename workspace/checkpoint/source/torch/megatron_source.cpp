#include "workspace/checkpoint/source/torch/megatron_source.hpp"

#include <set>
#include <string>
#include <utility>

#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

using codec::PickleKind;

/// The layers of an interleaved pipeline stage ("virtual pipeline"). The first parts of all stages hold the first
/// layers of the model, the second parts the next ones, and so on. In the files each part counts its layers from 0.
struct Interleaving {
  std::int64_t stage = 0;
  std::int64_t stages = 1;
  std::int64_t parts = 1;
  std::int64_t layers = 0;  ///< number of layers of the whole model

  [[nodiscard]] std::int64_t layers_of_part() const { return layers / (stages * parts); }
  [[nodiscard]] std::int64_t first_layer(std::int64_t part) const {
    return part * (layers / parts) + stage * layers_of_part();
  }
};

std::string part_name(std::int64_t part) { return "model" + std::to_string(part); }

Interleaving interleaving_of(codec::TorchArchive const& archive, Json const& values,
                             std::filesystem::path const& path) {
  auto const root = archive.root();
  auto const argument = [&](char const* key) {
    auto const& arguments = values.value("args", Json::object());
    auto const found = arguments.find(key);
    bool const counts = found != arguments.end() && found->is_number_integer();
    auto const value = counts ? found->get<std::int64_t>() : 0;
    if (value < 1 || value > 1'000'000) {
      archive.refuse(root, "the pipeline stages are interleaved, but the arguments lack \"" + std::string(key) + "\"",
                     "load it with the program that wrote it and save it without virtual stages");
    }
    return value;
  };
  Interleaving found{.stages = argument("pipeline_model_parallel_size"), .layers = argument("num_layers")};
  while (root.find(part_name(found.parts))) ++found.parts;
  auto const numbers = parse_shard_name(path.parent_path().filename().string());
  found.stage = numbers.pp.value_or(0);
  bool const placed = found.stages == 1 || numbers.pp.has_value();
  if (!placed || found.stage >= found.stages || found.layers % (found.stages * found.parts) != 0) {
    archive.refuse(root,
                   "the interleaved stages of this model do not divide its " + std::to_string(found.layers) +
                       " layers evenly, or the directory does not say the stage",
                   "load it with the program that wrote it and save it without virtual stages");
  }
  return found;
}

/// Returns all parts of a stage, with layers numbered as in the whole model.
codec::TorchContents interleaved_model(codec::TorchArchive const& archive, Interleaving const& order) {
  codec::TorchContents all;
  std::set<std::string> names;
  for (std::int64_t part = 0; part < order.parts; ++part) {
    auto const root = *archive.root().find(part_name(part));
    auto contents = codec::split_contents(archive, root);
    std::set<std::int64_t> layers;
    for (auto& tensor : contents.tensors) {
      if (auto const layer = find_layer(tensor.name)) {
        layers.insert(layer->number);
        tensor.name = std::string(layer->before) + std::to_string(layer->number + order.first_layer(part)) +
                      std::string(layer->after);
      }
      if (!names.insert(tensor.name).second) archive.refuse(root, "two parts have a tensor \"" + tensor.name + "\"");
      all.tensors.push_back(std::move(tensor));
    }
    auto const count = static_cast<std::int64_t>(layers.size());
    if (count != order.layers_of_part() || *layers.rbegin() != count - 1) {
      archive.refuse(root, "an interleaved part has " + std::to_string(count) +
                               " layers; they should have numbers 0 to " + std::to_string(order.layers_of_part() - 1));
    }
  }
  return all;
}

codec::TorchContents model_of(codec::TorchArchive const& archive, Json const& values, std::filesystem::path const& path,
                              std::string const& asked) {
  auto const root = archive.root();
  if (root.find(part_name(0))) return interleaved_model(archive, interleaving_of(archive, values, path));
  if (!asked.empty() && asked != ".") {
    if (auto const model = root.find(asked)) return codec::split_contents(archive, *model);
    archive.refuse(root, "there is no key \"" + asked + "\"", "set `model_key` to an existing key");
  }
  for (auto const* key : {"model", "module"}) {
    auto const model = root.find(key);
    if (model && model->is(PickleKind::dict)) return codec::split_contents(archive, *model);
  }
  archive.refuse(root, "there is no key \"model\" or \"module\"");
}

}  // namespace

Json megatron_values(codec::TorchArchive const& archive, codec::PickleValue root) {
  Json values = Json::object();
  for (auto const* key : {"args", "iteration", "checkpoint_version", "global_steps", "ds_version", "dp_world_size",
                          "mp_world_size", "num_experts"}) {
    auto const value = root.find(key);
    if (value) values[key] = codec::split_contents(archive, *value).values;
  }
  return values;
}

std::shared_ptr<TorchSource const> open_megatron_rank(std::filesystem::path const& path,
                                                      TorchSourceOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  auto archive = codec::TorchArchive::open(
      pool->open(path),
      {.crc = options.crc, .allowlist = codec::training_allowlist(), .extra_globals = options.extra_globals});
  codec::TorchContents contents{.values = megatron_values(*archive, archive->root())};
  auto model = model_of(*archive, contents.values, path, options.model_key);
  for (auto& tensor : model.tensors) {
    if (tensor.name.ends_with("_extra_state")) {
      contents.values["left_out"].push_back(tensor.name);
    } else {
      contents.tensors.push_back(std::move(tensor));
    }
  }
  return std::make_shared<TorchSource const>(path.string(), std::move(archive), std::move(contents));
}

}  // namespace crossrank::checkpoint
