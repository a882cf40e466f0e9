#include "workspace/checkpoint/write/separate_output.hpp"

#include <set>
#include <system_error>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(fs::path const& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

}  // namespace

void require_separate_output(std::string const& operation, fs::path const& in, std::span<FileStamp const> inputs,
                             fs::path const& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return;
  std::set<fs::path> folders{fs::is_directory(in, error) ? in : folder_of(in)};
  for (auto const& input : inputs) {
    folders.insert(folder_of(input.path));
    if (fs::is_symlink(input.path, error)) folders.insert(folder_of(fs::weakly_canonical(input.path, error)));
  }
  for (auto const& folder : folders) {
    if (!fs::equivalent(folder, out, error)) continue;
    throw UsageError({.operation = operation,
                      .message = "the output directory contains the input",
                      .resource = out.string(),
                      .hint = "choose another output directory"});
  }
}

}  // namespace crossrank::checkpoint
