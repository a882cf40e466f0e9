#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {

/// What may be the result of the same job: a job that was killed just after it had committed leaves it, and whoever
/// starts that job again with --resume wants success, not the refusal of an output that exists.
class WrittenResult {
 public:
  /// Looks for files of all names and sizes that the job would write, and no other checkpoint beside them. Nothing when
  /// there are none, when the job is not resumed, or when its folder has something to commit.
  [[nodiscard]] static std::optional<WrittenResult> find(WriteRequest const& request);

  /// Compares the files beside the weights. `UsageError` where one differs.
  void compare_extras(WriteRequest const& request) const;
  /// Removes what the killed job left in its folder.
  void remove_folder();

 private:
  explicit WrittenResult(platform::Directory out) : out_(std::move(out)) {}

  platform::Directory out_;
  std::optional<platform::Directory> work_{};  ///< what is left of the job's folder
  platform::Fd lock_{};
};

/// The refusal of an output that exists and differs from what this job writes.
[[nodiscard]] UsageError output_differs(std::filesystem::path const& out, std::string const& file);

}  // namespace crossrank::checkpoint
