#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>

#include "lib/codec/safetensors/state_file_name.hpp"

namespace crossrank::workspace {

using codec::parse_state_file_name;
using codec::StateFileName;

/// Returns the name of the state file for which `name` is a temporary.
[[nodiscard]] std::optional<StateFileName> parse_temporary(std::string const& name);
/// Returns the name of the file that ModelOpt writes for a rank.
[[nodiscard]] std::string torch_file_name(int rank);

/// The files of one rank in a directory.
struct RankFiles {
  std::vector<StateFileName> states{};  ///< newest first, by counter
  std::vector<StateFileName> of_gathers{};
  std::vector<std::string> temporaries{};  ///< temporaries of state files that were never published
  bool torch = false;                      ///< whether there is a file that ModelOpt wrote
};

// crossrank_checkpoint, a library beside this one, reads names of state files with the next two.
[[nodiscard]] CROSSRANK_EXPORT RankFiles files_of_rank(std::vector<std::string> const& names, int rank);

/// Returns the state files if one writer wrote them all. Otherwise throws `FormatError` that names two files of
/// different writers, or a state file and a torch archive.
[[nodiscard]] CROSSRANK_EXPORT std::vector<StateFileName> const& require_one_writer(RankFiles const& files, int rank,
                                                                                    std::string const& directory,
                                                                                    std::string const& operation);

/// Returns the next name of a state of `rank` for this process; forked children never repeat a name. Throws `IoError`
/// when the kernel gives no random number, `UnavailableError` after 2^32 names.
[[nodiscard]] StateFileName next_state_file(int rank);
/// Returns whether this process, and not its parent, created that name.
[[nodiscard]] bool is_of_this_process(StateFileName const& file) noexcept;
/// Makes the two functions above wait in other threads, so that a fork finds them in no call.
void lock_state_file_names();
/// Ends what `lock_state_file_names` began, in the same thread; in a child too.
void unlock_state_file_names() noexcept;

}  // namespace crossrank::workspace
