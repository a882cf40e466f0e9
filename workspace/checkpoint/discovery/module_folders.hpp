#pragma once
#include <cstdint>
#include <vector>

#include "workspace/checkpoint/source/sidecar_file.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {

/// Returns the files of at most `max_bytes` in the folders that `modules.json` of a sentence-transformers model names
/// ("1_Pooling").
///
/// Leaves out folders outside the model and links to folders, with a warning. Throws `FormatError` if `modules.json` is
/// not JSON.
[[nodiscard]] std::vector<SidecarFile> module_sidecars(DirectoryListing const& listing, std::uintmax_t max_bytes);

}  // namespace crossrank::checkpoint
