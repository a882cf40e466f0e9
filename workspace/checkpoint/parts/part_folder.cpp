#include "workspace/checkpoint/parts/part_folder.hpp"

#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

#include <sys/stat.h>

#include <crossrank/error.hpp>

#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/parts/json_checksum.hpp"
#include "workspace/checkpoint/write/job/commit.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* repeat_hint = "run the part again";

std::optional<struct stat> status_of(platform::Directory const& work, std::string const& name) {
  struct stat status {};
  if (platform::system().fstatat(work.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  return status;
}

std::int64_t changed_at(struct stat const& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

std::optional<PartFolder> PartFolder::open(std::filesystem::path const& out, std::string const& id) {
  auto const path = out / folder_name(id);
  struct stat status {};
  if (platform::system().fstatat(AT_FDCWD, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    platform::throw_io(std::string(write_operation) + ": fstatat", path.string(), errno);
  }
  try {
    PartFolder folder(platform::Directory::open(path, write_operation));
    if (folder.stage() == PlanStage::gone) return std::nullopt;
    return folder;
  } catch (IoError const& error) {
    // A process that publishes the result may remove the folder meanwhile.
    if (error.info().system_errno == ENOENT || error.info().system_errno == ESTALE) return std::nullopt;
    throw;
  }
}

void PartFolder::begin_run(ReadBack read_back) {
  read_back_ = read_back;
  remove_dead_runs(work_);
  run_ = std::make_unique<PartRun>(work_);
}

std::string PartFolder::working_name(std::string const& name) const { return run_ ? run_->working_name(name) : name; }

std::optional<Json> PartFolder::finished(std::string const& name) const {
  auto const marker = finished_marker_name(name);
  auto const file = status_of(work_, name);
  if (!file || !status_of(work_, marker)) return std::nullopt;
  try {
    auto record = load_json(work_, marker, repeat_hint);
    bool const valid = record.is_object() && record.value("checksum", std::string()) == json_checksum(record) &&
                       record.at("bytes").get<std::uint64_t>() == static_cast<std::uint64_t>(file->st_size) &&
                       record.at("changed").is_number_integer() && record.at("read_back").is_boolean();
    return valid ? std::optional(std::move(record)) : std::nullopt;
  } catch (FormatError const&) {
    return std::nullopt;
  } catch (Json::exception const&) {
    return std::nullopt;
  }
}

void PartFolder::mark_finished(std::string const& name, Json const& facts) const {
  auto const from = working_name(name);
  auto const status = status_of(work_, from);
  if (!status) platform::throw_io(std::string(write_operation) + ": fstatat", work_.path_of(from), ENOENT);
  // A file that appears after the result was published would be left behind.
  if (stage() != PlanStage::open) platform::throw_io(std::string(write_operation), work_.path().string(), ENOENT);
  auto record = facts;
  record["read_back"] = read_back_ == ReadBack::all;
  record["changed"] = changed_at(*status);
  record["checksum"] = json_checksum(record);
  if (platform::system().renameat(work_.fd(), from.c_str(), work_.fd(), name.c_str()) != 0)
    platform::throw_io(std::string(write_operation) + ": rename", work_.path_of(from), errno);
  CROSSRANK_CRASH_POINT("parts.renamed");
  auto const text = record.dump();
  platform::AtomicFile file(work_, finished_marker_name(name), text.size(), write_operation);
  file.write(std::as_bytes(std::span(text)));
  file.commit(platform::IfExists::replace);
  CROSSRANK_CRASH_POINT("parts.recorded");
}

PartFile PartFolder::state_of(OutputFile const& file) const {
  auto const record = finished(file.name);
  if (!record || record->at("bytes") != file.bytes) return PartFile::missing;
  auto const status = status_of(work_, file.name);
  bool const proven = status && record->at("read_back").get<bool>() && record->at("changed") == changed_at(*status);
  return proven ? PartFile::complete : PartFile::unproven;
}

void PartFolder::forget(std::string const& name) const {
  (void)work_.remove(finished_marker_name(name), write_operation);
}

bool PartFolder::is_published() const { return entry_at(work_, published_name) == Entry::file; }

PlanStage PartFolder::stage() const {
  try {
    if (is_published() || has_commit_record(work_)) return PlanStage::publishing;
    return entry_at(work_, parts_record_name) == Entry::file ? PlanStage::open : PlanStage::gone;
  } catch (IoError const& error) {
    // An NFS server forgets a folder that another host has removed.
    if (error.info().system_errno == ESTALE) return PlanStage::gone;
    throw;
  }
}

}  // namespace crossrank::checkpoint
