#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// Metadata key that holds the offsets of a file's tensors in the whole tensors.
inline constexpr std::string_view dcp_sharding_key = "DCP_SHARDING_INFO";

/// Opens a distributed checkpoint that consists of these safetensors files. The source has only the tensors that
/// `wants` selects, or all if it is empty. Throws `FormatError` or `IoError`.
[[nodiscard]] std::shared_ptr<ShardSource const> open_dcp_safetensors(
    std::string name, std::vector<std::filesystem::path> const& files, std::shared_ptr<FilePool> const& pool,
    std::function<bool(std::string const&)> const& wants);

}  // namespace crossrank::checkpoint
