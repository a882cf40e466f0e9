#pragma once
#include <filesystem>
#include <optional>

#include "workspace/checkpoint/discovery/shard_listing.hpp"

namespace crossrank::checkpoint {

/// The directory that the file "latest" (DeepSpeed) or "latest_checkpointed_iteration.txt" (Megatron) of a directory
/// names; nothing when it has neither. `FormatError` when there is no such directory.
[[nodiscard]] std::optional<std::filesystem::path> follow_pointer(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
