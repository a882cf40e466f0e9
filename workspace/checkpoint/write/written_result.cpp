#include "workspace/checkpoint/write/written_result.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/commit.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t read_block_bytes = std::size_t{1} << 20;

/// Returns whether `out` has a regular file of that name and size.
bool has_file(platform::Directory const& out, std::string const& name, std::uint64_t bytes) {
  struct stat status {};
  return platform::system().fstatat(out.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) == bytes;
}

bool has_all(platform::Directory const& out, WriteRequest const& request) {
  auto const weights = [&](auto const& file) { return has_file(out, file.name, file.bytes); };
  auto const extra = [&](auto const& file) { return has_file(out, file.name, size_of(file)); };
  return std::all_of(request.files.begin(), request.files.end(), weights) &&
         std::all_of(request.extras.begin(), request.extras.end(), extra);
}

/// Returns whether the bytes of a file from `at` on are equal to `expected`.
bool has_bytes(PooledFile const& file, std::uint64_t at, std::span<std::byte const> expected) {
  std::vector<std::byte> found(expected.size());
  if (!found.empty()) file.read_at(at, found);
  return std::equal(found.begin(), found.end(), expected.begin(), expected.end());
}

bool is_same(PooledFile const& file, ExtraFile const& extra) {
  if (extra.copy_of.empty()) return has_bytes(file, 0, std::as_bytes(std::span(extra.text)));
  auto const from = std::make_shared<FilePool>()->open(extra.copy_of);
  if (from->size() != file.size()) return false;
  std::vector<std::byte> block(read_block_bytes);
  for (std::uint64_t at = 0; at < from->size(); at += read_block_bytes) {
    auto const size = std::min<std::uint64_t>(read_block_bytes, from->size() - at);
    auto const part = std::span(block).first(size);
    from->read_at(at, part);
    if (!has_bytes(file, at, part)) return false;
  }
  return true;
}

}  // namespace

std::optional<WrittenResult> WrittenResult::find(WriteRequest const& request) {
  std::error_code error;
  if (!request.resume || request.force || !std::filesystem::is_directory(request.out, error)) return std::nullopt;
  WrittenResult result(platform::Directory::open(request.out, write_operation));
  auto const& out = result.out_;
  auto const folder = folder_name(request.id);
  if (entry_at(out, folder) == Entry::folder) {
    auto work = platform::Directory::open(out.path_of(folder), write_operation);
    auto lock = take_lock(work);
    if (!lock || has_commit_record(work)) return std::nullopt;
    result.lock_ = std::move(*lock);
    result.work_ = std::move(work);
  }
  if (!has_all(out, request)) return std::nullopt;
  auto const names = job_request(request).names;
  std::set<std::string> const own(names.begin(), names.end());
  for (auto const& name : files_to_replace(out, names)) {
    if (!own.contains(name)) return std::nullopt;
  }
  return result;
}

void WrittenResult::compare_extras(WriteRequest const& request) const {
  auto const pool = std::make_shared<FilePool>();
  for (auto const& extra : request.extras) {
    if (!is_same(*pool->open(out_.path_of(extra.name)), extra)) throw output_differs(request.out, extra.name);
  }
}

void WrittenResult::remove_folder() {
  if (work_) remove_job(out_, *work_);
  work_.reset();
}

UsageError output_differs(std::filesystem::path const& out, std::string const& file) {
  return UsageError({.operation = write_operation,
                     .message = "the output already has a checkpoint, and it is not the result of this job",
                     .got = file + " differs from what this job writes",
                     .resource = out.string(),
                     .hint = "choose another output directory, or use `force` to replace it"});
}

}  // namespace crossrank::checkpoint
