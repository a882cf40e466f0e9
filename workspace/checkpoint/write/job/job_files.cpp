#include "workspace/checkpoint/write/job/job_files.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <span>
#include <utility>

#include <sys/file.h>

#include "lib/codec/json/json_document.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/retry.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank::checkpoint {
namespace {

// A part that still runs may add a file while the folder is removed. An NFS server may also keep a removed file that a
// process has open; then the folder stays.
constexpr int max_removals = 10;

}  // namespace

std::string job_file_name(std::string const& name) {
  if (name.find('/') == std::string::npos) return name;
  std::string flat(nested_file_prefix);
  for (char const c : name) {
    if (c == '/') {
      flat += "%2F";
    } else if (c == '%') {
      flat += "%25";
    } else {
      flat += c;
    }
  }
  return flat;
}

Entry entry_at(platform::Directory const& directory, std::string const& name) {
  struct stat status {};
  if (platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
    return S_ISDIR(status.st_mode) ? Entry::folder : Entry::file;
  if (errno != ENOENT && errno != ENOTDIR)
    platform::throw_io(std::string(write_operation) + ": fstatat", directory.path_of(name), errno);
  return Entry::nothing;
}

std::optional<platform::Fd> take_lock(platform::Directory const& work) {
  auto& os = platform::system();
  for (;;) {
    platform::Fd fd(platform::retry_interrupted(
        [&] { return os.openat(work.fd(), lock_name, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR); }));
    if (!fd) platform::throw_io(std::string(write_operation) + ": lock", work.path_of(lock_name), errno);
    // If the file system has no locks (ENOLCK, EOPNOTSUPP), the user must prevent concurrent jobs.
    if (os.flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
    struct stat status {};
    if (os.fstat(fd.get(), &status) != 0)
      platform::throw_io(std::string(write_operation) + ": fstat", work.path_of(lock_name), errno);
    // Another process may have removed the file before it was locked here, and then it excludes nobody.
    if (status.st_nlink > 0) return fd;
  }
}

bool lock_is_effective(platform::Directory const& work) {
  auto& os = platform::system();
  platform::Fd const other(platform::retry_interrupted(
      [&] { return os.openat(work.fd(), lock_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0); }));
  return other && os.flock(other.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool belongs_to_job(platform::Directory const& work) {
  return entry_at(work, lock_name) == Entry::file || work.names(write_operation).empty();
}

FolderBytes bytes_in(platform::Directory const& work) {
  FolderBytes bytes;
  for (auto const& name : work.names(write_operation)) {
    struct stat status {};
    if (platform::system().fstatat(work.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    auto const on_disk = static_cast<std::uint64_t>(status.st_blocks) * 512U;
    bytes.on_disk += on_disk;
    bytes.written += std::max(on_disk, static_cast<std::uint64_t>(status.st_size));
  }
  return bytes;
}

FormatError unreadable_record(std::string const& file, std::string got, std::string hint) {
  return FormatError({.operation = write_operation,
                      .message = "a record of a killed job cannot be read",
                      .got = std::move(got),
                      .resource = file,
                      .hint = std::move(hint),
                      .section = "json"});
}

Json load_json(platform::Directory const& work, std::string const& name, char const* hint) {
  auto const path = work.path() / name;
  auto const file = std::make_shared<FilePool>()->open(path);
  if (file->size() > codec::listing_limits.bytes)
    throw unreadable_record(path.string(), std::to_string(file->size()) + " bytes", hint);
  std::string text(file->size(), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  try {
    return codec::parse_json(text, {.limits = codec::listing_limits});
  } catch (FormatError const& error) {
    throw unreadable_record(path.string(), error.info().message, hint);
  }
}

void save_json(platform::Directory const& work, std::string const& name, Json const& value) {
  auto const text = value.dump();
  platform::AtomicFile file(work, name, text.size(), write_operation);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void clear_job(platform::Directory const& work) {
  (void)work.remove(commit_record_name, write_operation);
  for (auto const& name : work.names(write_operation)) {
    if (name != lock_name && name != published_name) (void)work.remove(name, write_operation);
  }
}

void remove_job(platform::Directory const& out, platform::Directory const& work) {
  auto const folder = work.path().filename();
  for (int attempt = 0; attempt < max_removals; ++attempt) {
    clear_job(work);
    CROSSRANK_CRASH_POINT("checkpoint.commit.folder_cleared");
    (void)work.remove(published_name, write_operation);
    (void)work.remove(lock_name, write_operation);
    if (platform::system().unlinkat(out.fd(), folder.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return;
    if (errno != ENOTEMPTY && errno != EEXIST)
      platform::throw_io(std::string(write_operation) + ": rmdir", work.path().string(), errno);
    if (entry_at(work, lock_name) == Entry::file) return;  // the next run of the job has begun
  }
}

}  // namespace crossrank::checkpoint
