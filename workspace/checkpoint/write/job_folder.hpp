#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"
#include "workspace/checkpoint/write/commit.hpp"

namespace crossrank::checkpoint {

/// How a job wants its output folder.
struct JobRequest {
  std::filesystem::path out{};
  std::string id{};                  ///< of the job: the same for the same inputs, rules and options
  std::vector<std::string> names{};  ///< of all files that will appear, in the order of the commit
  std::uint64_t bytes = 0;           ///< of all of them together
  bool force = false;
  bool resume = false;
};

/// The hidden folder in which a job works, `.crossrank-<id>` inside the output folder, and how its files get out.
///
/// One rank makes, commits and removes it; the others open it.
class JobFolder {
 public:
  /// Checks the output folder, makes what is missing, locks the job, and checks that there is space. Removes what
  /// killed jobs left unless they are to be resumed, or brings them to their end. `UsageError` for an output that
  /// exists or a job that runs there now, `FormatError` for a killed one that was committing other files, `IoError`
  /// for a disk that is too small, before the first byte.
  [[nodiscard]] static JobFolder make(JobRequest const& request);
  /// Refuses what `make` would refuse for the output folder as it stands, and makes nothing.
  static void check(JobRequest const& request);
  /// For the ranks that did not make it.
  [[nodiscard]] static JobFolder open(JobRequest const& request);
  JobFolder(JobFolder&&) noexcept = default;
  JobFolder& operator=(JobFolder&&) = delete;
  JobFolder(JobFolder const&) = delete;
  JobFolder& operator=(JobFolder const&) = delete;
  ~JobFolder() = default;

  [[nodiscard]] platform::Directory const& directory() const noexcept { return work_; }
  /// Notes that a file is durable and read back, with what `--resume` needs to know of it.
  void mark_finished(std::string const& name, Json const& facts) const;
  /// The facts of a file that was finished, by this job or the killed one before; nothing when it was not.
  [[nodiscard]] std::optional<Json> finished(std::string const& name) const;
  /// Whether this job died before while it committed. Of the rank that made the folder.
  [[nodiscard]] bool was_committing() const noexcept { return interrupted_commit_.has_value(); }

  /// Moves a checkpoint that is there aside and gives all files their names, in order. A failure is undone. `IoError`.
  void commit();
  /// Removes the folder and all in it, and the output folder if this job made it and nothing stands in it. What was
  /// begun to be committed and not ended stays.
  void remove() noexcept;
  /// The same once all is committed: the output folder stays.
  void remove_after_success() noexcept;

 private:
  JobFolder(JobRequest request, platform::Directory out, platform::Directory work);
  void finish_interrupted_commit();

  JobRequest request_;
  platform::Directory out_;
  platform::Directory work_;
  platform::Fd lock_{};
  bool created_out_ = false;
  bool keep_ = false;                                 ///< holds what could not be put back
  std::optional<CommitRecord> interrupted_commit_{};  ///< by a killed job, until it is brought to its end
};

}  // namespace crossrank::checkpoint
