#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/state.hpp>
#include <crossrank/workspace/options.hpp>

namespace crossrank::workspace {
class FileStateStore;
}

namespace crossrank {

/// Exchanges configs and weights between ranks through files in a shared directory, on NFS or any other file system.
///
/// Local: it has a directory and a rank, and never communicates. Each write makes a new safetensors file, which appears
/// complete and durable or not at all. The two newest files of each rank stay. The files outlive the process; `clean()`
/// removes them. `crossrank clean` keeps the files of a process that exited cleanly, unless given `--all`.
///
/// To read only, use `NFSWorkspace::open(path)`: the constructor is for ranks that write. Copies of a handle refer to
/// the same workspace, which must not be used by several threads at once. Follows ModelOpt's `NFSWorkspace`.
class CROSSRANK_EXPORT NFSWorkspace {
 public:
  /// Makes a handle without a workspace. Every member except `is_initialized()` and `store()` then throws a
  /// `UsageError`.
  NFSWorkspace() noexcept;
  /// Creates the directory and its parents and **deletes the states that earlier processes of this rank left there**.
  ///
  /// Local; any number of ranks may do so at the same time. `Existing::keep` keeps the states; to read them, use
  /// `NFSWorkspace::open(path)`. The first deletion of a state whose writer exited cleanly is logged as a warning, once
  /// for each call. A file that is not a state but has the name of one stays, with a warning. So do files on a file
  /// system without locks, where it is unknown whether their writer is alive; `Existing::force` removes these. A torch
  /// archive of this rank goes only if this workspace writes torch archives itself, as ModelOpt's does.
  ///
  /// `IoError` when the system refuses, and for a path through another user's symbolic link into a directory that does
  /// not belong to that user. `UsageError` for a rank that is negative or not below the given world size.
  explicit NFSWorkspace(std::filesystem::path const& path, WorkspaceOptions options = {});
  /// Opens an existing directory for reading; deletes nothing. Local. The directory may be another job's: every rank
  /// from 0 may be read.
  [[nodiscard]] static NFSWorkspace open(std::filesystem::path const& path);

  /// Returns whether the handle refers to a workspace.
  [[nodiscard]] bool is_initialized() const noexcept { return store_ != nullptr; }
  /// Returns the directory.
  [[nodiscard]] std::filesystem::path const& path() const;
  /// Returns this process's rank. `UsageError` for a workspace made by `open`.
  [[nodiscard]] int rank() const;

  /// Publishes this rank's state.
  ///
  /// Local; one copy into a new file, which is made durable and then gets its name. Tensors may be on a GPU, which
  /// copies one piece while the piece before is written. An `IoError` gives the bytes written and the free space;
  /// nothing is visible then and no file is left. With `StateFormat::torch` the previous file stays complete until the
  /// new one replaces it; `UsageError` for a dtype that torch lacks and for an undefined tensor. The collective gathers
  /// need a workspace that writes safetensors.
  void write_configs_and_weights(Json const& config, StateDict const& weights);
  /// Returns the newest state of `rank`, which may be this process's own rank. Returns nothing if that rank never
  /// wrote.
  ///
  /// Local; one copy into memory that the tensors share. They are read-only; `clone()` makes a writable copy. With
  /// `StateReadOptions::to` they are then copied to a GPU, where they are writable. If there is only ModelOpt's
  /// `rank_<rank>_state.pth`, that file is read. Its CRCs are compared, and no code in it is ever called. On NFS, a
  /// state that another rank has just written may not be visible yet; the collective gathers wait for it, this call
  /// does not.
  ///
  /// `UsageError` for a rank that is negative or, when the world size is known, not below it. `FormatError` names the
  /// file when the newest one is damaged (`Damaged::take_older` asks for the previous state), when two writers left
  /// files for the rank, or when there is a torch archive beside a state image. `IoError` for links, files of other
  /// users, and files that others can write.
  [[nodiscard]] std::optional<RankState> read_configs_and_weights_from_rank(int rank,
                                                                            StateReadOptions const& options = {}) const;
  /// Removes all files of this rank. Local. Keeps files of another process or workspace that is alive.
  void clean();

  /// Returns the state store, for the collective gathers; null when not initialized.
  [[nodiscard]] std::shared_ptr<workspace::FileStateStore> const& store() const noexcept { return store_; }

 private:
  explicit NFSWorkspace(std::shared_ptr<workspace::FileStateStore> store) noexcept;
  [[nodiscard]] workspace::FileStateStore& initialized(char const* operation) const;

  std::shared_ptr<workspace::FileStateStore> store_{};
};

}  // namespace crossrank
