#pragma once
#include <memory>
#include <vector>

#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"
#include "workspace/checkpoint/source/torch/torch_source.hpp"

namespace crossrank::checkpoint {

/// Opens one shard of any format: safetensors, a state image, torch archives, or a rank file of a training framework.
///
/// `options.pool` must be set. Throws `IoError` or `FormatError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_shard(ShardFiles const& shard, TorchSourceOptions const& options);
/// Opens one file as a shard; otherwise like `open_shard`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_shard_file(std::filesystem::path const& path,
                                                                 TorchSourceOptions const& options);

}  // namespace crossrank::checkpoint
