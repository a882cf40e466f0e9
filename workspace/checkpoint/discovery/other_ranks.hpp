#pragma once
#include <filesystem>

namespace crossrank::checkpoint {

/// Throws `UsageError` if `file`, which the caller gave as a whole model, has a rank or the number of a part in its
/// name and the files of other ranks or parts are beside it.
void require_no_other_ranks(std::filesystem::path const& file);

}  // namespace crossrank::checkpoint
