#pragma once
#include <filesystem>
#include <string>

namespace crossrank::checkpoint {

/// `UsageError` when inputs and output are the same place: the inputs would be replaced while they are read.
void require_elsewhere(std::string const& operation, std::filesystem::path const& in, std::filesystem::path const& out);

}  // namespace crossrank::checkpoint
