#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Metadata key under which a file says where in the whole its tensors begin.
inline constexpr std::string_view dcp_sharding_key = "DCP_SHARDING_INFO";

/// The distributed checkpoint that these safetensors files are. `FormatError`, `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp_safetensors(std::string name,
                                                                      std::vector<std::filesystem::path> const& files,
                                                                      std::shared_ptr<FilePool> const& pool);

}  // namespace crossrank::checkpoint
