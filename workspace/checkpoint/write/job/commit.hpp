#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::checkpoint {

/// Returns whether a file of that name belongs to a checkpoint: weights, an index, the config of the model, or the
/// state of its training. Adapters and what trainers of other programs save beside a model do not.
[[nodiscard]] bool is_checkpoint_file(std::string const& name);

/// Returns the files in `out` that a checkpoint with these names replaces: files of any checkpoint, and files with the
/// same names. Throws `UsageError` if a folder has one of the names.
[[nodiscard]] std::vector<std::string> files_to_replace(platform::Directory const& out,
                                                        std::vector<std::string> const& names);

/// The renames that a job makes in its output.
///
/// The job writes the record to its folder once the whole result is durable there and before the first rename. From
/// then on any process can complete the commit.
struct CommitRecord {
  std::vector<std::string> from_out{};  ///< names of the previous checkpoint
  std::vector<std::string> to_out{};    ///< names of the result
};

/// Returns whether a job's folder has a commit record. Throws `IoError` if the file system cannot tell.
[[nodiscard]] bool has_commit_record(platform::Directory const& work);
/// Returns the commit record in a job's folder, or nothing if there is none. Throws `FormatError` if it is damaged.
[[nodiscard]] std::optional<CommitRecord> load_commit_record(platform::Directory const& work);
/// Writes a commit record to a job's folder, durably. Throws `IoError`.
void save_commit_record(platform::Directory const& work, CommitRecord const& plan);

/// Moves the old checkpoint into a job's folder and the result out of it. Continues where a killed job had stopped.
class Commit {
 public:
  /// Keeps references to both directories.
  Commit(platform::Directory const& out, platform::Directory const& work) : out_(out), work_(work) {}

  /// Makes all renames. After a failure, undoes the renames of this call and throws `IoError`, or `FormatError` if a
  /// file is in neither place.
  void run(CommitRecord const& plan);
  /// Returns whether undoing failed.
  [[nodiscard]] bool is_partial() const noexcept { return partial_; }

 private:
  struct Rename {
    bool to_out = false;
    std::string from{};
    std::string to{};
  };

  [[nodiscard]] bool move(Rename const& wanted, char const* what);
  [[nodiscard]] platform::Fd open_parent(std::string const& name);
  void sync_out() const;
  void move_old_aside(CommitRecord const& plan);
  void move_new_in(CommitRecord const& plan);
  void undo() noexcept;

  platform::Directory const& out_;
  platform::Directory const& work_;
  std::vector<Rename> renames_{};
  std::set<std::string> parents_{};  ///< folders inside `out` that files were moved to or from
  bool partial_ = false;
};

}  // namespace crossrank::checkpoint
