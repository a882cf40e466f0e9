#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::checkpoint {

/// Whether a file of that name belongs to a checkpoint: weights, an index, the model's config.
[[nodiscard]] bool is_checkpoint_file(std::string const& name);

/// Files in `out` that a checkpoint of these names replaces: those of any checkpoint, and those of the same names.
/// `UsageError` for a folder that has one of the names.
[[nodiscard]] std::vector<std::string> files_to_replace(platform::Directory const& out,
                                                        std::vector<std::string> const& names);

/// What a job does to its output. Written down in the job's folder before it begins, when all of the result
/// is durable there: from then on anybody can bring it to its end.
struct CommitRecord {
  std::vector<std::string> from_out{};  ///< names of the checkpoint before
  std::vector<std::string> to_out{};    ///< names of the result, in order; the last one makes it a checkpoint
};

/// Whether a job's folder has a plan. `IoError` when that cannot be told.
[[nodiscard]] bool has_commit_record(platform::Directory const& work);
/// The plan in a job's folder; nothing when there is none.
[[nodiscard]] std::optional<CommitRecord> load_commit_record(platform::Directory const& work);
void save_commit_record(platform::Directory const& work, CommitRecord const& plan);

/// Moves a checkpoint that is there into a job's folder and the result out of it, from where a killed job had stopped.
class Commit {
 public:
  /// Both must outlive it.
  Commit(platform::Directory const& out, platform::Directory const& work) : out_(out), work_(work) {}

  /// A failure is undone as far as this call had moved: `IoError`; `FormatError` when a file is in neither place.
  void run(CommitRecord const& plan);
  /// Whether a failure could not be undone.
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
