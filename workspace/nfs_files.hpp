#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::workspace {

/// Who wrote a state file, and as his how-manyth: a name that is used once, ever.
///
/// `rank_<rank>_state.<writer, 16 hex>-<counter, 8 hex>.safetensors`
struct StateFile {
  int rank = 0;
  std::uint64_t writer = 0;   ///< drawn at random, once per process
  std::uint32_t counter = 0;  ///< of that process

  [[nodiscard]] std::string name() const;
  bool operator==(StateFile const&) const noexcept = default;
};

/// The inverse of `StateFile::name`; nothing for any other name.
[[nodiscard]] std::optional<StateFile> parse_state_file(std::string_view name) noexcept;
/// The state file that a temporary was to become.
[[nodiscard]] std::optional<StateFile> parse_temporary(std::string const& name);
/// The file that ModelOpt writes for a rank.
[[nodiscard]] std::string torch_file_name(int rank);

/// What stands in a directory for one rank.
struct RankFiles {
  std::vector<StateFile> states{};         ///< by counter, the newest first
  std::vector<std::string> temporaries{};  ///< of state files that were never published
  bool torch = false;                      ///< whether there is one that ModelOpt wrote
};

[[nodiscard]] RankFiles files_of_rank(std::vector<std::string> const& names, int rank);

/// The state files if they are of one writer. `FormatError` naming two files otherwise, or a state file and a torch
/// archive.
[[nodiscard]] std::vector<StateFile> const& require_one_writer(RankFiles const& files, int rank,
                                                               std::string const& directory,
                                                               std::string const& operation);

/// The next name for a file of `rank` that this process writes, forked children apart. `IoError` when there is no
/// chance to be had, `UnavailableError` after 2^32 names.
[[nodiscard]] StateFile next_state_file(int rank);
/// Whether this process, not its parent, gave that name.
[[nodiscard]] bool is_of_this_process(StateFile const& file) noexcept;

}  // namespace crossrank::workspace
