#pragma once
#include <cstdint>
#include <optional>

namespace crossrank {

/// What becomes of files that earlier processes of this rank left in the directory of a workspace.
enum class Existing : std::uint8_t {
  remove,  ///< they go, unless their writer is still alive or nobody can tell
  keep,    ///< they stay; after a write of our own, reading the rank finds two writers and says so
  force,   ///< as `remove`, and also where the file system has no locks that tell whether their writer is alive
};

/// What `NFSWorkspace` writes. It reads both.
enum class StateFormat : std::uint8_t {
  safetensors,  ///< state images: valid safetensors files with checksums, a new name for each
  torch,        ///< `rank_<rank>_state.pth` as ModelOpt writes it, for programs that read those; replaced by each write
};

struct WorkspaceOptions {
  std::optional<int> rank{};  ///< of this process in the job; the launcher's when not given, 0 without a launcher
  Existing existing = Existing::remove;           ///< what this rank left there before (`NFSWorkspace`)
  StateFormat format = StateFormat::safetensors;  ///< of `write_configs_and_weights` (`NFSWorkspace`)
  /// Ranks of the job, so that a rank it does not have is refused; the launcher's when not given, else unknown.
  std::optional<int> world_size{};
};

/// What a read does when a rank's newest state file is damaged.
enum class Damaged : std::uint8_t {
  refuse,      ///< `FormatError` that names the file
  take_older,  ///< the state before it, if that one verifies, with a warning in the log
};

struct StateReadOptions {
  Damaged damaged = Damaged::refuse;
};

}  // namespace crossrank
