#pragma once
#include <cstdint>
#include <optional>

namespace crossrank {

/// What becomes of files that earlier processes of this rank left in the directory of a workspace.
enum class Existing : std::uint8_t {
  remove,  ///< they go, unless their writer is still alive
  keep,    ///< they stay; after a write of our own, reading the rank finds two writers and says so
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
};

}  // namespace crossrank
