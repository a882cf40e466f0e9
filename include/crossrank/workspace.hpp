#pragma once
#include <variant>

#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>
#include <crossrank/workspace/options.hpp>

namespace crossrank {

/// Either of the two workspaces, for `GatherOptions::workspace`.
class Workspace {
 public:
  // NOLINTBEGIN(google-explicit-constructor): either converts
  /// Holds a workspace of files.
  Workspace(NFSWorkspace workspace) : held_(std::move(workspace)) {}
  /// Holds a workspace in shared memory.
  Workspace(SharedMemoryWorkspace workspace) : held_(std::move(workspace)) {}
  // NOLINTEND(google-explicit-constructor)

  /// Returns the workspace of files, or null.
  [[nodiscard]] NFSWorkspace const* nfs() const noexcept { return std::get_if<NFSWorkspace>(&held_); }
  /// Returns the workspace in shared memory, or null.
  [[nodiscard]] SharedMemoryWorkspace const* shared_memory() const noexcept {
    return std::get_if<SharedMemoryWorkspace>(&held_);
  }

 private:
  std::variant<NFSWorkspace, SharedMemoryWorkspace> held_;
};

}  // namespace crossrank
