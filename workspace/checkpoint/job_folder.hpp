#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::checkpoint {

/// How a job wants its output folder.
struct JobRequest {
  std::filesystem::path out{};
  std::string id{};                  ///< of the job: the same for the same inputs, rules and options
  std::vector<std::string> names{};  ///< of all files that will appear, in the order of publication
  std::uint64_t bytes = 0;           ///< of all of them together
  bool force = false;
  bool resume = false;
};

/// The hidden folder in which a job works, `.crossrank-<id>` inside the output folder, and how its files get out.
///
/// One rank makes, publishes and removes it; the others open it.
class JobFolder {
 public:
  /// Checks the output folder, makes what is missing, locks the job, and checks that there is room. Removes what
  /// killed jobs left unless they are to be resumed. `UsageError` for an output that exists or a job that runs there
  /// now, `IoError` for a disk that is too small, before the first byte.
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
  /// Whether an earlier job died while it published.
  [[nodiscard]] bool was_publishing() const;

  /// Moves a checkpoint that is there aside and gives all files their names, in order. A failure is undone. `IoError`.
  void publish();
  /// Removes the folder and all in it, and the output folder if this job made it and nothing stands in it.
  void remove() noexcept;
  /// The same once all is published: the output folder stays.
  void remove_after_success() noexcept;

 private:
  JobFolder(JobRequest request, platform::Directory out, platform::Directory work);
  [[nodiscard]] bool move(platform::Directory const& from, std::string const& name, platform::Directory const& to,
                          std::string const& new_name, char const* what);
  void move_old(std::vector<std::string> const& old);
  void undo() noexcept;

  JobRequest request_;
  platform::Directory out_;
  platform::Directory work_;
  platform::Fd lock_{};
  bool made_out_ = false;
  bool keep_ = false;  ///< holds what could not be put back
  struct Move {
    bool out_to_work = false;
    std::string from{};
    std::string to{};
  };
  std::vector<Move> moves_{};
};

/// What cleaning did with the folder of a job.
struct CleanedJob {
  std::string name{};
  std::uint64_t bytes = 0;
  bool removed = false;  ///< or would be, in a dry run
  std::string why{};     ///< why it stays; empty for what goes
};

/// Removes the folders that killed jobs left in an output folder. `IoError` when that cannot be read.
[[nodiscard]] std::vector<CleanedJob> clean_jobs(std::filesystem::path const& path, bool dry_run);

/// Whether a file of that name belongs to a checkpoint: weights, an index, the model's config.
[[nodiscard]] bool is_checkpoint_file(std::string const& name);

}  // namespace crossrank::checkpoint
