#pragma once
#include <cstdint>
#include <optional>

namespace crossrank {

/// What becomes of files that earlier processes of this rank left in the directory of a workspace.
enum class Existing : std::uint8_t {
  remove,  ///< they go, unless their writer is still alive
  keep,    ///< they stay; after a write of our own, reading the rank finds two writers and says so
};

struct WorkspaceOptions {
  std::optional<int> rank{};  ///< of this process in the job; the launcher's when not given, 0 without a launcher
  Existing existing = Existing::remove;  ///< what this rank left there before (`NFSWorkspace`)
};

}  // namespace crossrank
