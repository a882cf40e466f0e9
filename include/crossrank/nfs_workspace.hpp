#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace_options.hpp>

namespace crossrank::workspace {
class FileStateStore;
}

namespace crossrank {

/// Hands configs and weights from rank to rank through files in a shared directory, on NFS or any other file system.
///
/// Local: it knows a directory and a rank and communicates with nobody. Each write makes a new file in safetensors
/// format, which appears whole and durable or not at all. A rank's two newest files stay. The files outlive the
/// process; `clean()` removes them. `crossrank clean` keeps those of a process that exited cleanly, unless it is told
/// `--all`.
///
/// To read only, use `NFSWorkspace::open(path)`: the constructors are for ranks that write. Copies of a handle are the
/// same workspace, which must not be used by several threads at once. Follows ModelOpt's `NFSWorkspace`.
class CROSSRANK_EXPORT NFSWorkspace {
 public:
  /// Makes a handle to no workspace. Every member except `is_initialized()` then throws a `UsageError`.
  NFSWorkspace() noexcept;
  /// Creates the directory and its parents and **deletes the states that earlier processes of this rank left there**.
  ///
  /// Local; any number of ranks may do so at the same time. `Existing::keep` keeps the states; to read them, use
  /// `NFSWorkspace::open(path)`. The first deletion of a state whose writer exited cleanly is logged as a warning, once
  /// for each call. Files that only have a name like ours stay, with a warning. So do files on a file system without
  /// locks, where nobody can tell whether their writer is alive; `Existing::force` removes these.
  ///
  /// `IoError` when the system refuses, also for a path through another user's symbolic link into a directory that is
  /// not that user's. `UsageError` for a negative rank, or one beyond the given world size.
  explicit NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options = {});
  /// Opens an existing directory for reading; deletes nothing. It may be another job's: any rank that is not negative
  /// may be read.
  [[nodiscard]] static NFSWorkspace open(std::filesystem::path const& path);

  /// Returns whether the handle names a workspace.
  [[nodiscard]] bool is_initialized() const noexcept { return store_ != nullptr; }
  /// Returns the directory.
  [[nodiscard]] std::filesystem::path const& path() const;
  /// Returns this process's rank. `UsageError` for a workspace made by `open`.
  [[nodiscard]] int rank() const;

  /// Publishes this rank's state.
  ///
  /// Local; one copy into a new file, which is made durable and then gets its name. On an `IoError`, which gives the
  /// bytes written and the free space, nothing is visible and nothing is left. With `StateFormat::torch` the earlier
  /// file stays whole until the new one has its name; `UsageError` for a dtype that torch lacks and for an undefined
  /// tensor. The collective gathers need a workspace that writes safetensors.
  void write_configs_and_weights(Json const& config, StateDict const& weights);
  /// Returns the newest state of `rank`, also of this process's own rank; nothing when that rank never wrote.
  ///
  /// Local; one copy into memory that the tensors share and that cannot be written (`clone()`). Where only ModelOpt's
  /// `rank_<rank>_state.pth` is there, that is read: nothing in it is ever called, and its CRCs are compared. On NFS a
  /// state that another rank has just written may not be visible yet; the collective gathers wait for it, this call
  /// does not.
  ///
  /// `UsageError` for a negative rank, or one beyond the number of ranks where that is known. `FormatError` names the
  /// file when the newest one is damaged (`Damaged::take_older` asks for the state before it), when two writers left
  /// files for the rank, or when a torch archive is there besides ours. `IoError` for links, files of other users, and
  /// files that others can write.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank,
                                                                            StateReadOptions const& options = {}) const;
  /// Removes all files of this rank. Files of another process or workspace that is alive stay.
  void clean();

  /// Returns the part that the collective gathers use; null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::FileStateStore> const& store() const noexcept { return store_; }

 private:
  explicit NFSWorkspace(std::shared_ptr<workspace::FileStateStore> store) noexcept;
  [[nodiscard]] workspace::FileStateStore& initialized(char const* operation) const;

  std::shared_ptr<workspace::FileStateStore> store_{};
};

}  // namespace crossrank
