#include "lib/codec/io/byte_source.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::codec {
namespace {

// Linux moves at most 0x7ffff000 bytes in one call.
constexpr std::size_t max_per_call = std::size_t{1} << 30;

std::uint64_t regular_size(std::string const& name, int fd) {
  struct stat status {};
  if (platform::system().fstat(fd, &status) != 0) platform::throw_io("read", name, errno);
  if (!S_ISREG(status.st_mode))
    throw FormatError({.operation = "read", .message = "not a regular file", .resource = name, .section = "file"});
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

MemorySource::MemorySource(std::string name, std::shared_ptr<spi::Storage> memory)
    : name_(std::move(name)), memory_(std::move(memory)) {}

void MemorySource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  if (!to.empty()) copy_memory(to.data(), memory_->data() + offset, to.size());
}

FileSource::FileSource(std::string name, int fd) : name_(std::move(name)), fd_(fd), size_(regular_size(name_, fd)) {}

void FileSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    auto const got =
        platform::system().pread(fd_, to.data(), std::min(to.size(), max_per_call), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      platform::throw_io("read", name_, errno);
    }
    if (got == 0) {
      throw FormatError({.operation = "read",
                         .message = "the file ends early",
                         .expected = std::to_string(size_) + " bytes",
                         .got = std::to_string(offset),
                         .resource = name_,
                         .hint = "the file was truncated while it was read: read it again",
                         .section = "file",
                         .offset = offset});
    }
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(as_size(got));
  }
}

FileSink::FileSink(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}

void FileSink::write_at(std::uint64_t offset, std::span<std::byte const> from) {
  while (!from.empty()) {
    auto const put =
        platform::system().pwrite(fd_, from.data(), std::min(from.size(), max_per_call), static_cast<off_t>(offset));
    if (put < 0) {
      if (errno == EINTR) continue;
      platform::throw_io("write", name_, errno);
    }
    if (put == 0) platform::throw_io("write", name_, EIO);
    offset += static_cast<std::uint64_t>(put);
    from = from.subspan(as_size(put));
  }
}

void MemorySink::write_at(std::uint64_t offset, std::span<std::byte const> from) {
  if (offset > memory_.size() || from.size() > memory_.size() - offset) {
    throw UsageError({.operation = "write",
                      .message = "the buffer is too small",
                      .expected = std::to_string(memory_.size()) + " bytes",
                      .got = std::to_string(from.size()) + " from " + std::to_string(offset)});
  }
  if (!from.empty()) copy_memory(memory_.data() + offset, from.data(), from.size());
}

}  // namespace crossrank::codec
