#pragma once
#include <cstdint>
#include <optional>

namespace crossrank {

/// Says what becomes of files that earlier processes of this rank left in a workspace's directory.
enum class Existing : std::uint8_t {
  remove,  ///< they go, unless their writer is still alive or nobody can tell
  keep,    ///< they stay; after a write of our own, reading the rank finds two writers and says so
  force,   ///< as `remove`, and also where the file system has no locks that tell whether their writer is alive
};

/// Says which files `NFSWorkspace` writes. It reads both.
enum class StateFormat : std::uint8_t {
  safetensors,  ///< state images: valid safetensors files with checksums, a new name for each
  torch,        ///< `rank_<rank>_state.pth` as ModelOpt writes it, for programs that read those; replaced by each write
};

/// Options of `NFSWorkspace`.
struct WorkspaceOptions {
  std::optional<int> rank{};  ///< rank of this process in the job; empty: the launcher's, or 0 without a launcher
  Existing existing = Existing::remove;           ///< what happens to this rank's earlier files
  StateFormat format = StateFormat::safetensors;  ///< what `write_configs_and_weights` writes
  /// Number of ranks in the job, so that a rank beyond it is refused. Empty: the launcher's, else unknown.
  std::optional<int> world_size{};
};

/// Says what a read does when a rank's newest state file is damaged.
enum class Damaged : std::uint8_t {
  refuse,      ///< `FormatError` that names the file
  take_older,  ///< the state before it, if that one verifies, with a warning in the log
};

/// Options of `NFSWorkspace::read_configs_and_weights_from_rank`.
struct StateReadOptions {
  Damaged damaged = Damaged::refuse;  ///< what to do about a damaged file
};

}  // namespace crossrank
