#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace_options.hpp>

namespace crossrank::workspace {
class NfsMedium;
}

namespace crossrank {

/// Hands configs and weights from rank to rank through files in a shared directory, on NFS or any other file system.
///
/// Local: it knows a directory and a rank and communicates with nobody. Each write makes a new file, a valid
/// safetensors file, that appears whole and durable or not at all; the two newest of a rank stay. Copies of a handle
/// are the same workspace, which must not be used by several threads at once. The files outlive the process; `clean()`
/// removes them.
class CROSSRANK_EXPORT NFSWorkspace {
 public:
  /// No workspace; every call but `is_initialized` is a `UsageError`.
  NFSWorkspace() noexcept;
  /// Makes the directory and its parents, by as many ranks at once as there are, and removes what earlier processes of
  /// this rank left there (`Existing::keep` spares it). `IoError` where the system refuses, `UsageError` for a negative
  /// rank.
  explicit NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options = {});
  /// Opens a directory that is there, for reading only; removes nothing. For tools.
  [[nodiscard]] static NFSWorkspace open(std::filesystem::path const& path);

  [[nodiscard]] bool is_initialized() const noexcept { return medium_ != nullptr; }
  [[nodiscard]] std::filesystem::path const& path() const;
  /// This process's rank. `UsageError` for one opened with `open`.
  [[nodiscard]] int rank() const;

  /// Publishes this rank's state: one copy into a new file, made durable, given its name. `IoError` with the bytes
  /// written and the room left when that fails; then nothing is visible and nothing is left. With `StateFormat::torch`
  /// the file that stood there before stays whole until the new one has its name; `UsageError` for a dtype that torch
  /// has not and for an absent tensor. The ranges want a workspace that writes safetensors.
  void write_configs_and_weights(Json const& config, StateDict const& weights);
  /// The newest state of `rank` that verifies, this process's own rank allowed; nothing when that rank never wrote.
  ///
  /// One copy into memory that the tensors share and that, as with the other workspace, cannot be written (`clone()`).
  /// `FormatError` when no file of the rank verifies, when two writers left files for it, or a torch archive stands
  /// beside ours; `IoError` for links, files of other users, and files that others can write. Where only ModelOpt's
  /// `rank_<rank>_state.pth` is there, that is read: nothing in it is ever called, and its CRCs are compared. On NFS,
  /// what a peer has just written may not be seen yet: the collective ranges wait for it, this call does not.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank) const;
  /// Removes all files of this rank, but not those of another process, or another workspace of this one, that is alive.
  void clean();

  /// For the collective ranges. Null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::NfsMedium> const& medium() const noexcept { return medium_; }

 private:
  explicit NFSWorkspace(std::shared_ptr<workspace::NfsMedium> medium) noexcept;
  [[nodiscard]] workspace::NfsMedium& initialized(char const* operation) const;

  std::shared_ptr<workspace::NfsMedium> medium_{};
};

}  // namespace crossrank
