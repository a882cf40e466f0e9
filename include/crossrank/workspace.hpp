#pragma once
#include <variant>

#include <crossrank/nfs_workspace.hpp>
#include <crossrank/shared_memory_workspace.hpp>
#include <crossrank/workspace_options.hpp>

namespace crossrank {

/// Either workspace: what a gather may be given to travel through.
class Workspace {
 public:
  // NOLINTBEGIN(google-explicit-constructor): either is one
  Workspace(NFSWorkspace workspace) : held_(std::move(workspace)) {}
  Workspace(SharedMemoryWorkspace workspace) : held_(std::move(workspace)) {}
  // NOLINTEND(google-explicit-constructor)

  /// The workspace if it is of that kind, else null.
  [[nodiscard]] NFSWorkspace const* nfs() const noexcept { return std::get_if<NFSWorkspace>(&held_); }
  [[nodiscard]] SharedMemoryWorkspace const* shared_memory() const noexcept {
    return std::get_if<SharedMemoryWorkspace>(&held_);
  }

 private:
  std::variant<NFSWorkspace, SharedMemoryWorkspace> held_;
};

}  // namespace crossrank
