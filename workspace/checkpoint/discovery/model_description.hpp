#pragma once
#include <string_view>

#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Reads the description of a model from its directory: config, quantization config and the files to copy. Files that
/// the set already has and the directory lacks stay. Throws `IoError` or `FormatError`.
void take_description(ShardSet& set, DirectoryListing const& listing);

/// Returns whether `take_description` reads the file of this name. All others are only copied.
[[nodiscard]] bool describes_model(std::string_view name);

}  // namespace crossrank::checkpoint
