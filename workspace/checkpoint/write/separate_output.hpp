#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank::checkpoint {

/// `UsageError` when the output is a folder that an input is in, by its own name or behind a link: the inputs would be
/// replaced while they are read, or be gone afterwards.
void require_separate_output(std::string const& operation, std::filesystem::path const& in,
                             std::span<FileStamp const> inputs, std::filesystem::path const& out);

}  // namespace crossrank::checkpoint
