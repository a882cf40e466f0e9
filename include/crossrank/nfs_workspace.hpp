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
/// removes them. `crossrank clean` keeps those of a workspace that ended in order, unless it is told `--all`.
///
/// To read what is there, use `NFSWorkspace::open(path)`: the constructors are for ranks that write.
class CROSSRANK_EXPORT NFSWorkspace {
 public:
  /// No workspace; every call but `is_initialized` is a `UsageError`.
  NFSWorkspace() noexcept;
  /// Makes the directory and its parents, by as many ranks at once as there are, and **deletes the states that earlier
  /// processes of this rank left there**, as the reference does. `Existing::keep` spares them. To read them, use
  /// `NFSWorkspace::open(path)`, which deletes nothing.
  ///
  /// The first deletion of a state whose writer ended in order is logged as a warning, once for each call. Files that
  /// only have a name of ours stay, with a warning. So do files of which nobody can tell whether their writer is alive,
  /// where the file system has no locks; `Existing::force` removes these. `IoError` where the system refuses, also for
  /// a path that leads through another user's symbolic link into a directory that is not that user's. `UsageError` for
  /// a negative rank, or one beyond the given world size.
  explicit NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options = {});
  /// Opens a directory that is there, for reading only; removes nothing. It may be another job's: any rank that is not
  /// negative may be asked for.
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
  /// The newest state of `rank`, this process's own rank allowed; nothing when that rank never wrote.
  ///
  /// One copy into memory that the tensors share and that, as with the other workspace, cannot be written (`clone()`).
  /// `UsageError` for a negative rank, and for one that the job does not have, where the number of ranks is known.
  /// `FormatError` naming the file when the newest one is damaged (`Damaged::take_older` asks for the state before it),
  /// when two writers left files for the rank, or a torch archive stands beside ours; `IoError` for links, files of
  /// other users, and files that others can write. Where only ModelOpt's `rank_<rank>_state.pth` is there, that is
  /// read: nothing in it is ever called, and its CRCs are compared. On NFS, what a peer has just written may not be
  /// seen yet: the collective ranges wait for it, this call does not.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank,
                                                                            StateReadOptions const& options = {}) const;
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
