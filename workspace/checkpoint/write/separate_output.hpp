#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank::checkpoint {

/// Throws `UsageError` for an output folder that does not go with the inputs.
///
/// It must not contain an input, also behind a link: inputs might be replaced while they are read, or be removed
/// afterwards. A later merge of the same inputs must find the same files: so the output must not have the name of a
/// rank beside the folders of ranks, and must not lie above a folder of the inputs that a file such as "latest" names.
/// Any other folder inside or above those of the inputs is fine.
void require_separate_output(std::string const& operation, std::filesystem::path const& in,
                             std::span<FileStamp const> inputs, std::filesystem::path const& out);

}  // namespace crossrank::checkpoint
