#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank::checkpoint {

/// Throws `UsageError` if the output folder contains an input, also behind a link. Otherwise inputs might be replaced
/// while they are read, or be removed afterwards.
void require_separate_output(std::string const& operation, std::filesystem::path const& in,
                             std::span<FileStamp const> inputs, std::filesystem::path const& out);

}  // namespace crossrank::checkpoint
