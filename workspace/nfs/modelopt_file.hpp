#pragma once
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/platform/files/directory.hpp"

namespace crossrank::workspace {

/// Reads `rank_<rank>_state.pth`, the file that ModelOpt's workspace keeps for a rank: a torch archive of `{"config":
/// values, "weight": {name: tensor}}`. Returns nothing when there is no such file.
///
/// Throws `FormatError` when the archive holds anything else, `IoError` when the file cannot be read safely.
[[nodiscard]] std::optional<RankState> read_modelopt_file(platform::Directory const& directory, int rank);

/// Replaces the file atomically. Throws `IoError` and then leaves the old file in place, and no temporary.
void write_modelopt_file(platform::Directory const& directory, int rank, Json const& config, StateDict const& weights);

}  // namespace crossrank::workspace
