#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"
#include "workspace/checkpoint/write/job/commit.hpp"
#include "workspace/checkpoint/write/job/work_folder.hpp"

namespace crossrank::checkpoint {

/// The requirements of a job for its output folder.
struct JobRequest {
  std::filesystem::path out{};
  std::string id{};                  ///< id of the job: the same for the same inputs, rules and options
  std::vector<std::string> names{};  ///< names of all output files, in commit order
  std::uint64_t bytes = 0;           ///< size of all output files
  bool force = false;
  bool resume = false;
};

/// The hidden folder in which a job works, `.crossrank-<id>` inside the output folder, and the commit of its files.
///
/// One rank makes, commits and removes the folder; the other ranks open it.
class JobFolder final : public WorkFolder {
 public:
  /// Checks the output folder, creates missing folders, locks the job, and checks that there is enough space.
  ///
  /// Removes the folders of killed jobs unless they are to be resumed, or completes their commits. Throws before the
  /// first byte is written: `UsageError` if the output has a checkpoint or a job is running in it, `FormatError` if a
  /// killed run of this job was committing other files, and `IoError` if space is too small.
  [[nodiscard]] static JobFolder make(JobRequest const& request);
  /// Throws the errors that `make` would throw for the output folder, and changes nothing.
  static void check(JobRequest const& request);
  /// Opens the folder on the ranks that did not make it.
  [[nodiscard]] static JobFolder open(JobRequest const& request);
  JobFolder(JobFolder&&) noexcept = default;
  JobFolder& operator=(JobFolder&&) = delete;
  JobFolder(JobFolder const&) = delete;
  JobFolder& operator=(JobFolder const&) = delete;
  ~JobFolder() override = default;

  [[nodiscard]] platform::Directory const& directory() const noexcept override { return work_; }
  [[nodiscard]] std::string working_name(std::string const& name) const override { return name; }
  [[nodiscard]] std::optional<Json> finished(std::string const& name) const override;
  void mark_finished(std::string const& name, Json const& facts) const override;
  /// Returns whether an earlier run of this job was killed during its commit. Valid on the rank that made the folder.
  [[nodiscard]] bool was_committing() const noexcept { return interrupted_commit_.has_value(); }

  /// Moves the old checkpoint aside and renames all files to their final names, in order. Undoes a failure and throws
  /// `IoError`.
  void commit();
  /// Removes the folder with all its files, and the output folder if this job created it and it is empty. Keeps a
  /// folder with an unfinished commit.
  void remove() noexcept;
  /// Removes the folder after the commit. The output folder stays.
  void remove_after_success() noexcept;

 private:
  JobFolder(JobRequest request, platform::Directory out, platform::Directory work);
  void finish_interrupted_commit();

  JobRequest request_;
  platform::Directory out_;
  platform::Directory work_;
  platform::Fd lock_{};
  /// The output and its parents that `make` created, outermost first.
  std::vector<std::filesystem::path> new_folders_{};
  bool keep_ = false;                                 ///< the folder holds files that could not be restored
  std::optional<CommitRecord> interrupted_commit_{};  ///< commit of a killed run, until it is completed
};

}  // namespace crossrank::checkpoint
