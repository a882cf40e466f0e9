#include "workspace/checkpoint/megatron_source.hpp"

#include <utility>

namespace crossrank::checkpoint {
namespace {

using codec::PickleKind;
using codec::PickleValue;

PickleValue model_of(codec::TorchArchive const& archive) {
  auto const root = archive.root();
  if (root.find("model0")) {
    archive.refuse(root, "the stages of this model are interleaved (virtual pipeline)",
                   "load it with the program that wrote it and save it without virtual stages");
  }
  for (auto const* key : {"model", "module"}) {
    auto const model = root.find(key);
    if (model && model->is(PickleKind::dict)) return *model;
  }
  archive.refuse(root, "there is no \"model\" or \"module\" in it");
}

/// Arguments and plain values beside the model.
Json attributes_of(codec::TorchArchive const& archive) {
  Json values = Json::object();
  for (auto const* key :
       {"args", "iteration", "checkpoint_version", "global_steps", "ds_version", "dp_world_size", "mp_world_size"}) {
    auto const value = archive.root().find(key);
    if (value) values[key] = codec::take_apart(archive, *value).values;
  }
  return values;
}

}  // namespace

std::shared_ptr<TorchSource const> open_megatron_rank(std::filesystem::path const& path,
                                                      TorchSourceOptions const& options) {
  auto const pool = options.pool ? options.pool : std::make_shared<FilePool>();
  auto archive = codec::TorchArchive::open(
      pool->open(path),
      {.crc = options.crc, .dialect = codec::training_dialect(), .extra_globals = options.extra_globals});
  auto model = codec::take_apart(*archive, model_of(*archive));
  codec::TorchContents contents{.values = attributes_of(*archive)};
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
