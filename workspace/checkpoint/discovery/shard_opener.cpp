#include "workspace/checkpoint/discovery/shard_opener.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/multi_file_source.hpp"
#include "workspace/checkpoint/source/torch/megatron_source.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Opens the newest state image of a rank. Never falls back to an older one, because that would silently be another
/// state.
std::shared_ptr<ShardSource const> open_image(ShardFiles const& shard, std::shared_ptr<FilePool> const& pool) {
  auto const& newest = shard.files.front();
  try {
    return std::make_shared<SafetensorsSource>(newest.string(), std::vector{newest}, pool);
  } catch (FormatError const& error) {
    if (shard.files.size() == 1) throw;
    auto info = error.info();
    info.details.push_back("previous state: " + shard.files[1].string());
    info.hint = "remove this file to use the previous state, " + shard.files[1].filename().string();
    throw FormatError(std::move(info));
  }
}

bool is_torch_file(fs::path const& path) { return path.extension() != ".safetensors" && is_torch_archive(path); }

/// Returns whether training frameworks use this file name for more than a model.
bool is_training_state(std::string const& name) {
  static constexpr std::array<std::string_view, 4> names{"model_optim_rng.pt", "model_rng.pt", "model_weights.ckpt",
                                                         "megatron_gpt.ckpt"};
  return name.ends_with("_model_states.pt") || std::find(names.begin(), names.end(), name) != names.end();
}

std::shared_ptr<ShardSource const> open_torch(fs::path const& path, TorchSourceOptions const& options) {
  if (is_training_state(path.filename().string())) return open_megatron_rank(path, options);
  return open_torch_archive(path, options);
}

}  // namespace

std::shared_ptr<ShardSource const> open_shard_file(fs::path const& path, TorchSourceOptions const& options) {
  if (is_torch_file(path)) return open_torch(path, options);
  return std::make_shared<SafetensorsSource>(path.string(), std::vector{path}, options.pool);
}

std::shared_ptr<ShardSource const> open_shard(ShardFiles const& shard, TorchSourceOptions const& options) {
  if (shard.images) return open_image(shard, options.pool);
  if (shard.files.size() == 1) return open_shard_file(shard.files.front(), options);
  if (std::none_of(shard.files.begin(), shard.files.end(), is_torch_file))
    return std::make_shared<SafetensorsSource>(shard.shard.name, shard.files, options.pool);
  std::vector<std::shared_ptr<ShardSource const>> parts;
  for (auto const& file : shard.files) parts.push_back(open_shard_file(file, options));
  return std::make_shared<MultiFileSource>(shard.shard.name, std::move(parts));
}

}  // namespace crossrank::checkpoint
