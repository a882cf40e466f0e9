#pragma once
#include <memory>
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Opens one shard, whatever its files are: safetensors, a state image, torch archives, what a training framework keeps
/// for a rank. `options.pool` is given. `IoError`, `FormatError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_shard(ShardFiles const& shard, TorchSourceOptions const& options);
/// The same for a file by itself.
[[nodiscard]] std::shared_ptr<ShardSource const> open_shard_file(std::filesystem::path const& path,
                                                                 TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
