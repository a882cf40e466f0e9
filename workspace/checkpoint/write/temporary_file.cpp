#include "workspace/checkpoint/write/temporary_file.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/sysmacros.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/direct_io.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/retry.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t longest_transfer = std::size_t{1} << 30;
// Direct I/O does not pay off for smaller files.
constexpr std::uint64_t worth_direct = std::uint64_t{16} << 20;
constexpr mode_t readable = S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;  // the umask applies

}  // namespace

TemporaryFile::TemporaryFile(platform::Directory const& directory, std::string name, std::uint64_t bytes,
                             platform::Fd fd)
    : directory_(&directory), name_(std::move(name)), bytes_(bytes), fd_(std::move(fd)) {}

TemporaryFile::TemporaryFile(platform::Directory const& directory, std::string name, std::uint64_t bytes,
                             Caching caching)
    : TemporaryFile(directory, std::move(name), bytes, platform::Fd()) {
  auto& os = platform::system();
  fd_ = platform::Fd(platform::retry_interrupted([&] {
    return os.openat(directory_->fd(), name_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, readable);
  }));
  if (!fd_) fail("create", errno);
  CROSSRANK_CRASH_POINT("checkpoint.file.created");
  if (bytes_ == 0) return;
  if (caching == Caching::none) open_direct();
  auto const length = static_cast<off_t>(bytes_);
  if (platform::retry_interrupted([&] { return os.fallocate(fd_.get(), 0, 0, length); }) == 0) return;
  // NFS before 4.2 and some other file systems cannot reserve space. There, write, fsync or close reports a full disk.
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail("fallocate", errno);
}

TemporaryFile TemporaryFile::reopen(platform::Directory const& directory, std::string name, std::uint64_t bytes) {
  auto& os = platform::system();
  platform::Fd fd(platform::retry_interrupted(
      [&] { return os.openat(directory.fd(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0); }));
  TemporaryFile file(directory, std::move(name), bytes, std::move(fd));
  if (!file.fd_) file.fail("open", errno);
  struct stat status {};
  if (os.fstat(file.fd_.get(), &status) != 0) file.fail("fstat", errno);
  if (static_cast<std::uint64_t>(status.st_size) != bytes) {
    throw FormatError({.operation = write_operation,
                       .message = "a finished file has changed",
                       .expected = std::to_string(bytes) + " bytes",
                       .got = std::to_string(status.st_size),
                       .resource = directory.path_of(file.name_),
                       .hint = "run again without `resume`",
                       .section = "data"});
  }
  file.open_direct();
  return file;
}

/// Opens the file for direct I/O if it is on a block device. Network, memory and user-space file systems have better
/// ways or only pretend to support it.
void TemporaryFile::open_direct() {
  auto& os = platform::system();
  struct stat status {};
  if (bytes_ < worth_direct || os.fstat(fd_.get(), &status) != 0 || major(status.st_dev) == 0) return;
  direct_ = platform::Fd(platform::retry_interrupted(
      [&] { return os.openat(directory_->fd(), name_.c_str(), O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0); }));
}

template <class Bytes, class Call>
ssize_t TemporaryFile::transfer(std::uint64_t offset, Bytes bytes, Call const& call) const {
  bytes = bytes.first(std::min(bytes.size(), longest_transfer));
  auto const at = static_cast<off_t>(offset);
  if (auto const front = direct_ ? platform::direct_prefix_bytes(offset, bytes.data(), bytes.size()) : 0; front > 0) {
    auto const done = platform::retry_interrupted([&] { return call(direct_.get(), bytes.first(front), at); });
    if (done > 0 || (done < 0 && errno != EINVAL)) return done;
  }
  return platform::retry_interrupted([&] { return call(fd_.get(), bytes, at); });
}

void TemporaryFile::write_at(std::uint64_t offset, std::span<std::byte const> bytes) {
  auto const begin = static_cast<off_t>(offset);
  auto const length = static_cast<off_t>(bytes.size());
  while (!bytes.empty()) {
    auto const put = transfer(offset, bytes, [](int fd, auto part, off_t at) {
      return platform::system().pwrite(fd, part.data(), part.size(), at);
    });
    if (put <= 0) fail("pwrite", put == 0 ? EIO : errno);
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(as_size(put));
  }
  // Starts writing to the disk now, so that the final fsync has little left to do. Failures show up in that fsync.
  static_cast<void>(platform::system().sync_file_range(fd_.get(), begin, length, SYNC_FILE_RANGE_WRITE));
}

void TemporaryFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    auto const got = transfer(offset, bytes, [](int fd, auto part, off_t at) {
      return platform::system().pread(fd, part.data(), part.size(), at);
    });
    if (got <= 0) fail("pread", got == 0 ? EIO : errno);
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(as_size(got));
  }
}

void TemporaryFile::sync() {
  CROSSRANK_CRASH_POINT("checkpoint.file.written");
  // After a failed fsync the kernel may drop the pages and mark them clean, so fsync is never repeated on the same
  // file.
  if (platform::system().fsync(fd_.get()) != 0) fail("fsync", errno);
  struct stat status {};
  if (platform::system().fstat(fd_.get(), &status) != 0) fail("fstat", errno);
  if (static_cast<std::uint64_t>(status.st_size) != bytes_) {
    throw IoError({.operation = write_operation,
                   .message = "the file system lost bytes",
                   .expected = std::to_string(bytes_) + " bytes",
                   .got = std::to_string(status.st_size),
                   .resource = directory_->path_of(name_)});
  }
  CROSSRANK_CRASH_POINT("checkpoint.file.synced");
}

void TemporaryFile::close() {
  // A full NFS export may report an error here for the first time. EINTR is harmless: the bytes are durable since
  // fsync.
  if (int const error = direct_.close(); error != 0 && error != EINTR) fail("close", error);
  if (int const error = fd_.close(); error != 0 && error != EINTR) fail("close", error);
  CROSSRANK_CRASH_POINT("checkpoint.file.closed");
}

void TemporaryFile::fail(char const* call, int error) const {
  platform::throw_io(ErrorInfo{.operation = std::string(write_operation) + ": " + call,
                               .message = "nothing was committed",
                               .expected = bytes_ > 0 ? std::to_string(bytes_) + " bytes in this file" : std::string(),
                               .resource = directory_->path_of(name_),
                               .hint = platform::hint_if_full(directory_->fd(), error)},
                     error);
}

}  // namespace crossrank::checkpoint
