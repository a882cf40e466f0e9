#include "lib/platform/files/directory.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <dirent.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/platform/files/io_error.hpp"
#include "lib/platform/files/path_links.hpp"
#include "lib/platform/retry.hpp"

namespace crossrank::platform {
namespace {

constexpr int opens_tried = 4;

Fd open_directory(std::filesystem::path const& path) {
  return Fd(retry_interrupted([&] { return system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY, 0); }));
}

/// Creates `path` and its missing parents. Returns 0, or errno of the first that could not be created. It is not an
/// error if another process creates the same ones, or if the system refuses one that exists already (automounters).
int make_directories(std::filesystem::path const& path) {
  int first_error = 0;
  std::filesystem::path prefix;
  for (auto const& part : path) {
    prefix /= part;
    if (part.empty() || part == "." || part == ".." || part == path.root_path()) continue;
    bool const leaf = prefix == path;
    // Parents have the mode of mkdir -p, but all users may write to none of them.
    mode_t const mode = leaf ? S_IRWXU : S_IRWXU | S_IRWXG | S_IROTH | S_IXOTH;
    int const made = retry_interrupted([&] { return system().mkdirat(AT_FDCWD, prefix.c_str(), mode); });
    if (made != 0 && errno != EEXIST && first_error == 0) first_error = errno;
  }
  return first_error;
}

[[noreturn]] void refuse(std::string const& operation, std::string resource, std::string expected, std::string got,
                         std::string hint) {
  throw IoError(ErrorInfo{.operation = operation,
                          .message = "not safe to use",
                          .expected = std::move(expected),
                          .got = std::move(got),
                          .resource = std::move(resource),
                          .hint = std::move(hint)});
}

std::string mode_text(mode_t mode) {
  std::string text = "mode 0000";
  for (std::size_t digit = 0; digit < 4; ++digit) {
    text[text.size() - 1 - digit] = static_cast<char>('0' + ((mode >> (3 * digit)) & 7U));
  }
  return text;
}

char const* kind_text(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Fd open_or_make(std::filesystem::path const& path, std::string const& operation, IfMissing missing) {
  Fd fd = open_directory(path);
  int error = fd ? 0 : errno;
  if (error == ENOENT && missing == IfMissing::create) {
    check_links_above(path, operation);
    int const make_error = make_directories(path);
    fd = open_directory(path);
    error = fd ? 0 : (make_error != 0 ? make_error : errno);
  }
  if (!fd) throw_io(operation + ": open directory", path.string(), error);
  return fd;
}

void check_directory(struct stat const& status, std::filesystem::path const& path, std::string const& operation) {
  uid_t const self = ::geteuid();
  if (self != 0 && status.st_uid != self && status.st_uid != 0) {
    refuse(operation, path.string(), "a directory of user " + std::to_string(self) + " or root",
           "owner " + std::to_string(status.st_uid), "use a directory of your own");
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    refuse(operation, path.string(), "a directory that others cannot write to", mode_text(status.st_mode & 07777U),
           "chmod o-w, or use another directory");
  }
}

void check_file(struct stat const& status, uid_t directory_owner, std::string const& path,
                std::string const& operation) {
  if (!S_ISREG(status.st_mode)) {
    refuse(operation, path, "a regular file", kind_text(status.st_mode), "remove it: crossrank did not make it");
  }
  uid_t const self = ::geteuid();
  if (status.st_uid != self && status.st_uid != 0 && status.st_uid != directory_owner) {
    refuse(operation, path, "a file of user " + std::to_string(self), "owner " + std::to_string(status.st_uid),
           "run all ranks as one user");
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    refuse(operation, path, "a file that only its owner can write", mode_text(status.st_mode & 07777U),
           "chmod go-w if you trust its contents");
  }
}

}  // namespace

Directory::Directory(Fd fd, std::filesystem::path path, uid_t owner) noexcept
    : fd_(std::move(fd)), path_(std::move(path)), owner_(owner) {}

Directory Directory::open(std::filesystem::path path, std::string const& operation, IfMissing missing,
                          OtherWriters others) {
  if (path.empty()) throw UsageError(ErrorInfo{.operation = operation, .message = "the path is empty"});
  if (path.native().find('\0') != std::string::npos)  // the system would end the path there
    throw UsageError(
        ErrorInfo{.operation = operation, .message = "the path contains a zero byte", .resource = path.native()});
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();  // "dir/" is "dir"
  struct stat status {};
  for (int attempt = 0; attempt < opens_tried; ++attempt) {
    Fd fd = open_or_make(path, operation, missing);
    if (system().fstat(fd.get(), &status) != 0) throw_io(operation + ": fstat", path.string(), errno);
    if (!check_links(path, fd.get(), operation)) continue;
    if (others == OtherWriters::refuse) check_directory(status, path, operation);
    return Directory(std::move(fd), std::move(path), status.st_uid);
  }
  refuse(operation, path.string(), "a path that does not change", "another directory each time it was opened",
         "use a path that is not replaced meanwhile");
}

std::vector<std::string> Directory::names(std::string const& operation) const {
  // a separate descriptor: listing moves the position, and closedir() closes the descriptor
  Fd fd(retry_interrupted([&] { return system().openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY, 0); }));
  if (!fd) throw_io(operation + ": open directory", path_.string(), errno);
  auto const close = [](DIR* stream) { ::closedir(stream); };
  std::unique_ptr<DIR, decltype(close)> const stream(::fdopendir(fd.get()), close);
  if (stream == nullptr) throw_io(operation + ": fdopendir", path_.string(), errno);
  static_cast<void>(fd.release());  // the stream owns it now
  std::vector<std::string> found;
  errno = 0;
  while (dirent const* const entry = ::readdir(stream.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") found.push_back(std::move(name));
    errno = 0;
  }
  if (errno != 0) throw_io(operation + ": readdir", path_.string(), errno);
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<Fd> Directory::open_file(std::string const& name, std::string const& operation) const {
  // O_NONBLOCK: a pipe under this name must be refused without waiting; regular files ignore the flag
  constexpr int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
  Fd fd(retry_interrupted([&] { return system().openat(fd_.get(), name.c_str(), flags, 0); }));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    if (errno == ELOOP)
      refuse(operation, path_of(name), "a regular file", "a symbolic link", "remove it: crossrank did not make it");
    throw_io(operation + ": open", path_of(name), errno);
  }
  struct stat status {};
  if (system().fstat(fd.get(), &status) != 0) throw_io(operation + ": fstat", path_of(name), errno);
  check_file(status, owner_, path_of(name), operation);
  return fd;
}

bool Directory::remove(std::string const& name, std::string const& operation) const {
  if (retry_interrupted([&] { return system().unlinkat(fd_.get(), name.c_str(), 0); }) == 0) return true;
  if (errno == ENOENT) return false;
  throw_io(operation + ": unlink", path_of(name), errno);
}

void Directory::sync(std::string const& operation) const { sync_directory(fd_.get(), path_, operation); }

void sync_directory(int fd, std::filesystem::path const& path, std::string const& operation) {
  if (system().fsync(fd) == 0) return;
  // some file systems cannot sync a directory; with any other error the sync has failed
  if (errno == EINVAL || errno == ENOTSUP) return;
  throw_io(operation + ": fsync directory", path.string(), errno);
}

}  // namespace crossrank::platform
