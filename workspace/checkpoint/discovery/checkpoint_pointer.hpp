#pragma once
#include <filesystem>
#include <optional>

#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {

/// Returns the directory that the file "latest" (DeepSpeed) or "latest_checkpointed_iteration.txt" (Megatron) names, or
/// nothing if there is no such file. Throws `FormatError` if the named directory does not exist.
[[nodiscard]] std::optional<std::filesystem::path> follow_pointer(DirectoryListing const& listing);

}  // namespace crossrank::checkpoint
