#pragma once
#include <filesystem>

namespace crossrank::checkpoint {

/// Throws `UsageError` if `file`, which the caller gave as a whole model, has a rank in its name and the files of other
/// ranks are beside it.
void require_no_other_ranks(std::filesystem::path const& file);

}  // namespace crossrank::checkpoint
