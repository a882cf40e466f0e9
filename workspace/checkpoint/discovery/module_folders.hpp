#pragma once
#include <cstdint>
#include <vector>

#include "workspace/checkpoint/source/sidecar_file.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"

namespace crossrank::checkpoint {

/// Files in the folders that `modules.json` of a sentence-transformers model names ("1_Pooling"), of `most_bytes` each
/// at most. Folders outside the model and links to folders are left out, with a warning. `FormatError` when
/// `modules.json` is no JSON.
[[nodiscard]] std::vector<SidecarFile> module_sidecars(DirectoryListing const& listing, std::uintmax_t most_bytes);

}  // namespace crossrank::checkpoint
