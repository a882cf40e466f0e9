#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// A possible result of the same job in the output. If a job was killed right after its commit, running it again with
/// --resume should succeed instead of failing because the output exists.
class WrittenResult {
 public:
  /// Returns the result if the output has files of all names and sizes of the job and no other checkpoint. Returns
  /// nothing if a file is missing, if the job is not resumed, or if its folder has a commit record.
  [[nodiscard]] static std::optional<WrittenResult> find(WriteRequest const& request);

  /// Compares the files beside the weights. Throws `UsageError` if one differs.
  void compare_extras(WriteRequest const& request) const;
  /// Removes the folder of the killed run.
  void remove_folder();

 private:
  explicit WrittenResult(platform::Directory out) : out_(std::move(out)) {}

  platform::Directory out_;
  std::optional<platform::Directory> work_{};  ///< the job's folder, if it still exists
  platform::Fd lock_{};
};

/// Returns the error for an output that exists and differs from the result of this job.
[[nodiscard]] UsageError output_differs(std::filesystem::path const& out, std::string const& file);

}  // namespace crossrank::checkpoint
