#pragma once
#include <cstddef>
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

/// Returns the files that are missing by the numbers in the names of others, at most `most`: each rank may have parts 1
/// to y in "shard-<rank>-model-x-of-y.safetensors". A rank without a tensor in a part has no file for it.
[[nodiscard]] std::vector<std::string> missing_parts(std::vector<std::string> const& names, std::size_t most);

}  // namespace crossrank::checkpoint
