#include "workspace/checkpoint/write/separate_output.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/checkpoint_pointer.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(fs::path const& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

/// Returns a path without ".", ".." and a slash at its end. An empty path, which other checks refuse, stays empty.
fs::path plain_path(fs::path const& path) {
  std::error_code error;
  auto const plain = fs::absolute(path, error).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool is_one_of(std::set<fs::path> const& folders, fs::path const& wanted) {
  std::error_code error;
  return std::any_of(folders.begin(), folders.end(),
                     [&](auto const& folder) { return fs::equivalent(folder, wanted, error) && !error; });
}

/// The folders of the inputs.
struct InputFolders {
  std::set<fs::path> with_inputs{};
  std::set<fs::path> with_ranks{};  ///< their subfolders have the inputs, one for each rank
};

InputFolders folders_of(fs::path const& in, std::span<FileStamp const> inputs) {
  std::error_code error;
  InputFolders found{.with_inputs = {in}};
  for (auto const& input : inputs) {
    auto const folder = folder_of(input.path);
    found.with_inputs.insert(folder);
    if (!fs::equivalent(folder, in, error)) found.with_ranks.insert(plain_path(folder).parent_path());
    if (fs::is_symlink(input.path, error)) found.with_inputs.insert(folder_of(fs::weakly_canonical(input.path, error)));
  }
  return found;
}

/// Returns whether a file in `out` names `in` as the newest checkpoint there. A reader of `out` would no longer follow
/// it.
bool points_to(fs::path const& out, fs::path const& in) {
  std::error_code error;
  if (!fs::is_directory(out, error)) return false;
  try {
    auto const newest = follow_pointer(list_directory(out));
    return newest && fs::equivalent(*newest, in, error);
  } catch (Error const&) {
    return false;  // the output is no checkpoint
  }
}

[[noreturn]] void refuse(std::string const& operation, std::string message, fs::path const& out, std::string hint) {
  throw UsageError(
      {.operation = operation, .message = std::move(message), .resource = out.string(), .hint = std::move(hint)});
}

}  // namespace

void require_separate_output(std::string const& operation, fs::path const& in, std::span<FileStamp const> inputs,
                             fs::path const& out) {
  std::error_code error;
  auto const folder = fs::is_directory(in, error) ? in : folder_of(in);
  auto const [with_inputs, with_ranks] = folders_of(folder, inputs);
  auto const place = plain_path(out);
  if (is_one_of(with_inputs, out) || is_one_of(with_ranks, out))
    refuse(operation, "the output directory contains the input", out, "choose another output directory");
  if (parse_shard_name(place.filename().string()).has_place() && is_one_of(with_ranks, place.parent_path())) {
    refuse(operation, "the output would be taken for the directory of a rank of the input", out,
           "choose a name without the number of a rank, such as \"merged\"");
  }
  if (points_to(out, folder)) {
    refuse(operation, "the output would hide the checkpoints in its subdirectories from later merges of it", out,
           "choose another output directory, such as " + (place / "merged").string());
  }
}

}  // namespace crossrank::checkpoint
