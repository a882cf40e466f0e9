#pragma once
#include <optional>

#include <crossrank/json.hpp>
#include <crossrank/state.hpp>

#include "lib/platform/directory.hpp"

namespace crossrank::workspace {

/// The file that ModelOpt's workspace keeps for a rank, `rank_<rank>_state.pth`: a torch archive of
/// `{"config": values, "weight": {name: tensor}}`. Nothing when there is none.
///
/// `FormatError` for anything else than that, `IoError` for a file that cannot be trusted.
[[nodiscard]] std::optional<RankState> read_modelopt_file(platform::Directory const& directory, int rank);

/// Writes it, in place of the one that was there. `IoError`; then that one is still there, and nothing else is left.
void write_modelopt_file(platform::Directory const& directory, int rank, Json const& config, StateDict const& weights);

}  // namespace crossrank::workspace
