#pragma once
#include <cstdint>
#include <optional>

#include <crossrank/device.hpp>

namespace crossrank {

/// Says what happens to files that earlier processes of this rank left in a workspace's directory.
enum class Existing : std::uint8_t {
  remove,         ///< removes them, unless their writer is alive or that cannot be determined
  keep,           ///< keeps them; after this process writes too, reading the rank fails because there are two writers
  remove_killed,  ///< removes those of processes that were killed, and keeps the states of those that exited cleanly
  force,          ///< removes them even on a file system without the locks that show whether their writer is alive
};

/// Says which files `NFSWorkspace` writes. It reads both.
enum class StateFormat : std::uint8_t {
  safetensors,  ///< state images: safetensors files with checksums, each under a new name
  torch,        ///< `rank_<rank>_state.pth`, for programs that read ModelOpt's files; each write replaces it
};

/// Options of `NFSWorkspace`.
struct WorkspaceOptions {
  std::optional<int> rank{};  ///< rank of this process in the job; empty: the launcher's, or 0 without a launcher
  Existing existing = Existing::remove;           ///< what to do with this rank's earlier files
  StateFormat format = StateFormat::safetensors;  ///< format of `write_configs_and_weights`
  /// Number of ranks in the job; a higher rank is then a `UsageError`. Empty: the launcher's, else unknown.
  std::optional<int> world_size{};
};

/// Says what a read does when a rank's newest state file is damaged.
enum class Damaged : std::uint8_t {
  refuse,      ///< throws a `FormatError` that names the file
  take_older,  ///< returns the previous state if it verifies, with a warning in the log
};

/// Options of `read_configs_and_weights_from_rank`.
struct StateReadOptions {
  Damaged damaged = Damaged::refuse;  ///< what to do with a damaged file; memory is never damaged
  Device to{};                        ///< where the tensors go; to a GPU in the order of its current stream
  /// Whether tensors that were written in place stay on their owner's GPU, as views; else they are copied to `to`.
  bool in_place = false;
};

/// Options of a write to shared memory.
struct StateWriteOptions {
  /// Whether readers get the memory of tensors on GPUs itself where processes can share it; see docs/DEVICES.md. These
  /// tensors cannot be written until another state replaces this one and the last reader has dropped them.
  bool in_place = false;
};

}  // namespace crossrank
