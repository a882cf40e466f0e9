#pragma once
#include <filesystem>
#include <memory>

#include "lib/codec/torch/torch_archive.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Opens the distributed checkpoint with `.metadata` in `directory`. Throws `FormatError` or `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp_torch(std::filesystem::path const& directory,
                                                                DcpOptions const& options,
                                                                std::shared_ptr<FilePool> const& pool);

}  // namespace crossrank::checkpoint
