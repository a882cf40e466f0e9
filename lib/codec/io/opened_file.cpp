#include "lib/codec/io/opened_file.hpp"

#include <cerrno>
#include <utility>

#include <fcntl.h>

#include <crossrank/error.hpp>

#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::codec {
namespace {

platform::Fd open_path(std::filesystem::path const& path, std::string const& operation) {
  // O_NONBLOCK: a pipe must not block the open; its type is refused later.
  int const fd = platform::system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
  if (fd < 0) platform::throw_io(operation, path.string(), errno);
  return platform::Fd(fd);
}

}  // namespace

OpenedFile::OpenedFile(std::filesystem::path const& path, std::string const& operation)
    : OpenedFile(open_path(path, operation), path.string()) {}

OpenedFile::OpenedFile(platform::Fd fd, std::string name) : fd_(std::move(fd)), file_(std::move(name), fd_.get()) {}

RangeSource::RangeSource(std::shared_ptr<ByteSource const> whole, std::uint64_t begin, std::uint64_t bytes,
                         std::string name)
    : whole_(std::move(whole)), begin_(begin), bytes_(bytes), name_(std::move(name)) {
  if (begin_ <= whole_->size() && bytes_ <= whole_->size() - begin_) return;
  throw FormatError({.operation = "read",
                     .message = "a part lies outside the file: the file was truncated, or belongs to another save",
                     .expected = std::to_string(bytes_) + " bytes from " + std::to_string(begin_),
                     .got = std::to_string(whole_->size()) + " bytes",
                     .resource = name_,
                     .section = "file",
                     .offset = whole_->size()});
}

}  // namespace crossrank::codec
