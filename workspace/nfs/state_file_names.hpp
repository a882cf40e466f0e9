#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/safetensors/state_file_name.hpp"

namespace crossrank::workspace {

using codec::parse_state_file_name;
using codec::StateFileName;

/// The state file that a temporary was to become.
[[nodiscard]] std::optional<StateFileName> parse_temporary(std::string const& name);
/// The file that ModelOpt writes for a rank.
[[nodiscard]] std::string torch_file_name(int rank);

/// What stands in a directory for one rank.
struct RankFiles {
  std::vector<StateFileName> states{};     ///< by counter, the newest first
  std::vector<std::string> temporaries{};  ///< of state files that were never published
  bool torch = false;                      ///< whether there is one that ModelOpt wrote
};

[[nodiscard]] RankFiles files_of_rank(std::vector<std::string> const& names, int rank);

/// The state files if they are of one writer. `FormatError` naming two files otherwise, or a state file and a torch
/// archive.
[[nodiscard]] std::vector<StateFileName> const& require_one_writer(RankFiles const& files, int rank,
                                                                   std::string const& directory,
                                                                   std::string const& operation);

/// The next name for a file of `rank` that this process writes, forked children apart. `IoError` when there is no
/// chance to be had, `UnavailableError` after 2^32 names.
[[nodiscard]] StateFileName next_state_file(int rank);
/// Whether this process, not its parent, gave that name.
[[nodiscard]] bool is_of_this_process(StateFileName const& file) noexcept;

}  // namespace crossrank::workspace
