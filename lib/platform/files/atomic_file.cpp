#include "lib/platform/files/atomic_file.hpp"

#include <algorithm>
#include <climits>
#include <string_view>
#include <utility>

#include <sys/file.h>
#include <sys/statvfs.h>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/random.hpp"
#include "lib/platform/retry.hpp"

namespace crossrank::platform {
namespace {

constexpr std::string_view temporary_suffix = ".crossrank.tmp";
constexpr std::size_t random_digits = 16;
constexpr std::size_t tail_bytes = 1 + random_digits + temporary_suffix.size();
constexpr std::string_view hexadecimal = "0123456789abcdef";

/// Returns the part of a final name that fits in the name of its temporary file. Keeps a name that is itself too long,
/// so that creating the temporary file fails before anything is written.
std::string_view shortened(std::string_view name) {
  constexpr std::size_t most = NAME_MAX - 1 - tail_bytes;
  if (name.size() <= most || name.size() > NAME_MAX) return name;
  auto end = most;
  // Some file systems refuse names that end inside a UTF-8 character, which has at most three continuation bytes.
  for (int i = 0; i < 3 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80; ++i) --end;
  return name.substr(0, end);
}

/// Returns whether the error of linkat() means that the file system has no hard links, or no more for this file.
bool links_unsupported(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

/// The part of an error that describes the directory of a file that could not be written.
struct DirectoryState {
  std::string text{};
  std::string hint{};
};

DirectoryState state_of(int directory, int error) {
  struct stat status {};
  if (::fstat(directory, &status) == 0 && status.st_nlink == 0)
    return {"; the directory was removed meanwhile", "keep the directory while it is in use"};
  struct statvfs space {};
  if (::fstatvfs(directory, &space) != 0) return {", free there: unknown", ""};
  return {", free there: " + std::to_string(static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize) + " of " +
              std::to_string(static_cast<std::uint64_t>(space.f_blocks) * space.f_frsize) + " bytes",
          hint_if_full(directory, error)};
}

}  // namespace

AtomicFile::AtomicFile(Directory const& directory, std::string name, std::uint64_t expected_bytes,
                       std::string operation, Readers readers)
    : directory_(directory),
      name_(std::move(name)),
      operation_(std::move(operation)),
      expected_(expected_bytes),
      readers_(readers) {
  create();
  CROSSRANK_CRASH_POINT("platform.atomic_file.created");
  reserve();
  CROSSRANK_CRASH_POINT("platform.atomic_file.reserved");
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::create() {
  constexpr int attempts = 16;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (try_create()) return;
  }
  fail("flock", EBUSY);
}

bool AtomicFile::try_create() {
  temporary_ = '.' + std::string(shortened(name_)) + '.' + random_hex(operation_) + std::string(temporary_suffix);
  constexpr int flags = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW;
  constexpr mode_t owner = S_IRUSR | S_IWUSR;
  mode_t const mode = readers_ == Readers::owner ? owner : owner | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
  fd_ = Fd(retry_interrupted([&] { return system().openat(directory_.fd(), temporary_.c_str(), flags, mode); }));
  if (!fd_) fail("create", errno);
  temporary_exists_ = true;
  // The lock shows a cleaner that the writer is alive. Without working locks a cleaner leaves the file alone. The lock
  // is shared, which NFS grants on files that are open only for reading, so that the caller can hold it beyond
  // commit().
  bool const locked = system().flock(fd_.get(), LOCK_SH | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK) return true;
  // A cleaner may have found the new file before it was locked, and may remove it.
  struct stat status {};
  if (locked && system().fstat(fd_.get(), &status) != 0) fail("fstat", errno);
  // The umask may have removed these bits, but a state file that its owner cannot write counts as finished.
  if (locked && (status.st_mode & owner) != owner && ::fchmod(fd_.get(), (status.st_mode & 07777U) | owner) != 0)
    fail("fchmod", errno);
  if (locked && status.st_nlink > 0) return true;
  discard();
  return false;
}

void AtomicFile::reserve() {
  if (expected_ == 0) return;
  auto const bytes = static_cast<off_t>(expected_);
  // mode 0, which also sets the length: NFS 4.2 supports no other
  if (retry_interrupted([&] { return system().fallocate(fd_.get(), 0, 0, bytes); }) == 0) return;
  // NFS before 4.2 and some other file systems cannot reserve: lack of space then shows in write, fsync or close
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("fallocate", errno);
}

void AtomicFile::write(std::span<std::byte const> bytes) { write_at(written_, bytes); }

void AtomicFile::write_at(std::uint64_t offset, std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    auto const at = static_cast<off_t>(offset);
    auto const done = retry_interrupted([&] { return system().pwrite(fd_.get(), bytes.data(), bytes.size(), at); });
    if (done <= 0) fail("pwrite", done == 0 ? EIO : errno);
    offset += static_cast<std::uint64_t>(done);
    written_ = std::max(written_, offset);
    bytes = bytes.subspan(as_size(done));
  }
}

void AtomicFile::commit(IfExists taken) {
  CROSSRANK_CRASH_POINT("platform.atomic_file.written");
  sync_and_check();
  if (taken == IfExists::replace) {
    replace();
  } else {
    make_visible();
  }
  if (system().fsync(directory_.fd()) != 0 && errno != EINVAL && errno != ENOTSUP) fail("fsync directory", errno);
  CROSSRANK_CRASH_POINT("platform.atomic_file.committed");
  name_exists_ = false;  // from here on it must not be removed
}

void AtomicFile::sync_and_check() {
  auto const length = static_cast<off_t>(written_);
  if (written_ < expected_ && retry_interrupted([&] { return system().ftruncate(fd_.get(), length); }) != 0) {
    fail("ftruncate", errno);
  }
  // never repeat fsync on the same file: after a failure the kernel may drop the pages and mark them clean
  if (system().fsync(fd_.get()) != 0) fail("fsync", errno);
  CROSSRANK_CRASH_POINT("platform.atomic_file.synced");
  struct stat status {};
  if (system().fstat(fd_.get(), &status) != 0) fail("fstat", errno);
  if (static_cast<std::uint64_t>(status.st_size) != written_) fail_size(static_cast<std::uint64_t>(status.st_size));
  device_ = status.st_dev;
  inode_ = status.st_ino;
  // a full NFS export may report it only here; after EINTR the bytes are durable because of fsync
  if (int const error = fd_.close(); error != 0 && error != EINTR) fail("close", error);
  CROSSRANK_CRASH_POINT("platform.atomic_file.closed");
}

void AtomicFile::make_visible() {
  auto& os = system();
  auto const* const from = temporary_.c_str();
  int const error = os.linkat(directory_.fd(), from, directory_.fd(), name_.c_str()) == 0 ? 0 : errno;
  // NFS may send a request twice: the first succeeds, the second is refused
  if (error == 0 || is_ours(name_)) {
    name_exists_ = true;
  } else if (!links_unsupported(error)) {
    fail("link", error);
  } else {
    struct stat status {};
    if (os.fstatat(directory_.fd(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) fail("rename", EEXIST);
    bool const renamed = os.renameat(directory_.fd(), from, directory_.fd(), name_.c_str()) == 0;
    if (int const rename_error = errno; !renamed && !is_ours(name_)) fail("rename", rename_error);
    name_exists_ = true;
    temporary_exists_ = false;
  }
  CROSSRANK_CRASH_POINT("platform.atomic_file.linked");
  if (temporary_exists_ && os.unlinkat(directory_.fd(), from, 0) != 0 && errno != ENOENT) fail("unlink", errno);
  temporary_exists_ = false;
  CROSSRANK_CRASH_POINT("platform.atomic_file.unlinked");
}

void AtomicFile::replace() {
  // NFS may send a request twice: the first succeeds, the second finds nothing to rename
  if (system().renameat(directory_.fd(), temporary_.c_str(), directory_.fd(), name_.c_str()) != 0) {
    if (int const error = errno; !is_ours(name_)) fail("rename", error);
  }
  temporary_exists_ = false;
  CROSSRANK_CRASH_POINT("platform.atomic_file.unlinked");
}

bool AtomicFile::is_ours(std::string const& name) const noexcept {
  struct stat status {};
  return system().fstatat(directory_.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         status.st_dev == device_ && status.st_ino == inode_;
}

void AtomicFile::discard() noexcept {
  fd_ = Fd();  // close first: NFS keeps a file that is unlinked while open, under another name
  auto const remove = [this](std::string const& name) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (system().unlinkat(directory_.fd(), name.c_str(), 0) == 0 || errno == ENOENT) return;
    }
  };
  if (std::exchange(temporary_exists_, false)) remove(temporary_);
  if (std::exchange(name_exists_, false)) remove(name_);
}

void AtomicFile::fail(char const* call, int error) {
  auto state = state_of(directory_.fd(), error);
  discard();
  throw_io(ErrorInfo{.operation = operation_ + ": " + call,
                     .message =
                         "the file was not committed; " + std::to_string(written_) + " bytes were written" + state.text,
                     .expected = expected_ != 0 ? std::to_string(expected_) + " bytes" : std::string(),
                     .resource = directory_.path_of(name_),
                     .hint = std::move(state.hint)},
           error);
}

void AtomicFile::fail_size(std::uint64_t found) {
  discard();
  throw IoError(ErrorInfo{.operation = operation_ + ": fstat",
                          .message = "the file system lost bytes; the file was not committed",
                          .expected = std::to_string(written_) + " bytes",
                          .got = std::to_string(found) + " bytes",
                          .resource = directory_.path_of(name_)});
}

std::string final_name_of_temporary(std::string const& name) {
  if (name.size() < 2 + tail_bytes || name.front() != '.' || !name.ends_with(temporary_suffix)) return {};
  auto const digits = std::string_view(name).substr(name.size() - tail_bytes + 1, random_digits);
  bool const all_hex = digits.find_first_not_of(hexadecimal) == std::string_view::npos;
  if (!all_hex || name[name.size() - tail_bytes] != '.') return {};
  return name.substr(1, name.size() - tail_bytes - 1);
}

bool is_temporary_of(std::string const& name, std::string_view final_name) {
  return !final_name.empty() && final_name_of_temporary(name) == shortened(final_name);
}

}  // namespace crossrank::platform
