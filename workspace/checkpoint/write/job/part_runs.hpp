#pragma once
#include <mutex>
#include <set>
#include <string>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::checkpoint {

/// Returns whether a job's folder belongs to a plan of parts whose result is not published and not being published.
[[nodiscard]] bool has_unfinished_parts(platform::Directory const& work);
/// Returns whether a part is running in a job's folder, as far as locks tell.
[[nodiscard]] bool any_part_runs(platform::Directory const& work);
/// Removes the files that killed parts of this host were writing. Parts of other hosts are left alone, because many
/// network file systems have locks that other hosts do not see.
void remove_dead_runs(platform::Directory const& work);

/// One run of a part: a locked file in the job's folder while the part runs, and names for the files that it writes.
class PartRun {
 public:
  /// Makes and locks the file. Throws `IoError`. The folder must outlive the run.
  explicit PartRun(platform::Directory const& work);
  /// Removes the unfinished files of the run, and its locked file.
  ~PartRun();
  PartRun(PartRun const&) = delete;
  PartRun& operator=(PartRun const&) = delete;

  /// Returns the name of a file while this run writes it. May be called by any thread.
  [[nodiscard]] std::string working_name(std::string const& name);

 private:
  [[nodiscard]] bool try_begin();

  platform::Directory const& work_;
  std::string id_{};
  platform::Fd lock_{};
  std::mutex mutex_{};
  std::set<std::string> working_names_{};  ///< files that this run may have to remove
};

}  // namespace crossrank::checkpoint
