#include "workspace/checkpoint/source/file_pool.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/retry.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

// Number of attempts to read a file whose handle the NFS server no longer knows (ESTALE).
constexpr int stale_attempts = 3;
// The kernel shortens longer transfers.
constexpr std::size_t longest_transfer = std::size_t{1} << 30;

}  // namespace

std::size_t FilePool::default_limit() noexcept {
  constexpr std::size_t max = 128;
  constexpr std::size_t min = 8;
  auto const allowed = ::sysconf(_SC_OPEN_MAX);  // negative: no limit
  return allowed < 0 ? max : std::clamp(as_size(allowed) / 8, min, max);
}

std::shared_ptr<PooledFile const> FilePool::open(std::filesystem::path const& path) {
  std::shared_ptr<PooledFile> file(new PooledFile(shared_from_this(), path.string()));
  file->learn();
  return file;
}

std::size_t FilePool::open_files() const {
  std::lock_guard const lock(mutex_);
  return recent_.size();
}

std::vector<FileStamp> FilePool::stamps() const {
  std::lock_guard const lock(mutex_);
  // Files may be opened by several threads, in any order, and more than once.
  auto sorted = stamps_;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

void FilePool::note(FileStamp stamp) {
  std::lock_guard const lock(mutex_);
  stamps_.push_back(std::move(stamp));
}

std::shared_ptr<platform::Fd const> FilePool::find(PooledFile const& file) {
  std::lock_guard const lock(mutex_);
  auto const found = index_.find(&file);
  if (found == index_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return recent_.front().fd;
}

std::shared_ptr<platform::Fd const> FilePool::borrow(PooledFile const& file) {
  if (auto known = find(file)) return known;
  // Opened without the lock, because a network file system may take long.
  auto fd = std::make_shared<platform::Fd const>(file.open_now());
  std::lock_guard const lock(mutex_);
  if (auto const found = index_.find(&file); found != index_.end()) return found->second->fd;
  // A reader of the oldest file still shares its descriptor, so the descriptor closes when that read is done.
  while (recent_.size() >= limit_) {
    index_.erase(recent_.back().file);
    recent_.pop_back();
  }
  recent_.push_front({&file, fd});
  index_[&file] = recent_.begin();
  return fd;
}

void FilePool::forget(PooledFile const& file) {
  std::lock_guard const lock(mutex_);
  auto const found = index_.find(&file);
  if (found == index_.end()) return;
  recent_.erase(found->second);
  index_.erase(found);
}

PooledFile::~PooledFile() { pool_->forget(*this); }

platform::Fd PooledFile::open_now() const {
  auto& os = platform::system();
  // O_NONBLOCK: opening a pipe must not block; it is rejected below.
  platform::Fd fd(platform::retry_interrupted(
      [&] { return os.openat(AT_FDCWD, name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); }));
  if (!fd) platform::throw_io(std::string(read_operation) + ": open", name_, errno);
  struct stat status {};
  if (os.fstat(fd.get(), &status) != 0) platform::throw_io(std::string(read_operation) + ": fstat", name_, errno);
  if (!S_ISREG(status.st_mode)) {
    throw FormatError(
        {.operation = read_operation, .message = "this is not a regular file", .resource = name_, .section = "length"});
  }
  auto const size = static_cast<std::uint64_t>(status.st_size);
  if (known_ && (size != size_ || status.st_dev != device_ || status.st_ino != inode_)) {
    throw FormatError({.operation = read_operation,
                       .message = "the file was replaced while it was being read",
                       .expected = std::to_string(size_) + " bytes",
                       .got = std::to_string(size) + " bytes",
                       .resource = name_,
                       .hint = "run again when no other program writes to the inputs",
                       .section = "length"});
  }
  return fd;
}

void PooledFile::learn() {
  auto const fd = pool_->borrow(*this);
  struct stat status {};
  if (platform::system().fstat(fd->get(), &status) != 0)
    platform::throw_io(std::string(read_operation) + ": fstat", name_, errno);
  size_ = static_cast<std::uint64_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  known_ = true;
  stamp_ = {name_, size_, std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  pool_->note(stamp_);
}

void PooledFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  auto fd = pool_->borrow(*this);
  int stale = 0;
  while (!to.empty()) {
    auto const got = platform::retry_interrupted([&] {
      return platform::system().pread(fd->get(), to.data(), std::min(to.size(), longest_transfer),
                                      static_cast<off_t>(offset));
    });
    if (got < 0 && errno == ESTALE && ++stale < stale_attempts) {
      pool_->forget(*this);
      fd = pool_->borrow(*this);
      continue;
    }
    if (got < 0) platform::throw_io(std::string(read_operation) + ": pread", name_, errno);
    if (got == 0) {
      throw FormatError({.operation = read_operation,
                         .message = "the file became shorter while it was being read",
                         .expected = std::to_string(size_) + " bytes",
                         .got = "end of file at byte " + std::to_string(offset),
                         .resource = name_,
                         .section = "data",
                         .offset = offset});
    }
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(as_size(got));
  }
}

}  // namespace crossrank::checkpoint
