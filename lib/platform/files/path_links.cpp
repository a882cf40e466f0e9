#include "lib/platform/files/path_links.hpp"

#include <array>
#include <cerrno>
#include <climits>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::platform {
namespace {

constexpr int max_links = 40;  // the kernel's limit

/// A descriptor of a walk. It does not use the seam, because nothing is read through it.
class PathDescriptor {
 public:
  explicit PathDescriptor(int fd) noexcept : fd_(fd) {}
  ~PathDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  PathDescriptor(PathDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PathDescriptor& operator=(PathDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  PathDescriptor(PathDescriptor const&) = delete;
  PathDescriptor& operator=(PathDescriptor const&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] struct stat status() const noexcept {
    struct stat found {};
    if (::fstat(fd_, &found) != 0) found = {};
    return found;
  }

 private:
  int fd_;
};

/// A walk along a path. It opens every part only as `O_PATH`; the caller opens the directory itself.
class Walk {
 public:
  Walk(std::filesystem::path const& path, std::string const& operation) : path_(path), operation_(operation) {}

  /// Returns the directory at the end. `IoError` with the system's errno when a part is missing.
  PathDescriptor run() { return along(PathDescriptor(open_at(AT_FDCWD, ".", O_DIRECTORY)), path_); }

 private:
  int open_at(int directory, char const* name, int flags) {
    int const fd = ::openat(directory, name, O_PATH | O_CLOEXEC | flags);
    if (fd < 0) throw_io(operation_ + ": open directory", path_.string(), errno);
    return fd;
  }

  PathDescriptor along(PathDescriptor at, std::filesystem::path const& path) {
    for (auto const& part : path) {
      if (part.empty() || part == ".") continue;
      if (part == path.root_path()) {
        at = PathDescriptor(open_at(AT_FDCWD, "/", O_DIRECTORY));
        continue;
      }
      PathDescriptor next(open_at(at.get(), part.c_str(), O_NOFOLLOW));
      at = S_ISLNK(next.status().st_mode) ? follow(at, part, next) : std::move(next);
    }
    return at;
  }

  PathDescriptor follow(PathDescriptor const& from, std::filesystem::path const& name, PathDescriptor const& link) {
    if (++links_ > max_links) throw_io(operation_ + ": open directory", path_.string(), ELOOP);
    auto const owner = link.status().st_uid;
    auto target =
        is_of_kernel(link) ? PathDescriptor(open_at(from.get(), name.c_str(), O_DIRECTORY)) : resolve(from, link);
    auto const target_owner = target.status().st_uid;
    if (owner == 0 || owner == ::geteuid() || owner == target_owner) return target;
    throw IoError(ErrorInfo{.operation = operation_,
                            .message = "not safe to use: the path leads through the symbolic link \"" + name.string() +
                                       "\" of another user into a directory that is not that user's",
                            .expected = "a link of root, of user " + std::to_string(::geteuid()) +
                                        ", or of the directory's owner, user " + std::to_string(target_owner),
                            .got = "a link of user " + std::to_string(owner),
                            .resource = path_.string(),
                            .hint = "use the path of the directory itself, without the link"});
  }

  /// Returns whether the link is one of procfs. Such links have no text; only the kernel can follow them.
  static bool is_of_kernel(PathDescriptor const& link) {
    struct statfs system {};
    return ::fstatfs(link.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
  }

  PathDescriptor resolve(PathDescriptor const& from, PathDescriptor const& link) {
    std::array<char, PATH_MAX> text{};
    auto const bytes = ::readlinkat(link.get(), "", text.data(), text.size());
    if (bytes <= 0) throw_io(operation_ + ": readlink", path_.string(), bytes == 0 ? ENOENT : errno);
    return along(PathDescriptor(open_at(from.get(), ".", O_DIRECTORY)),
                 std::filesystem::path(std::string(text.data(), as_size(bytes))));
  }

  std::filesystem::path const& path_;
  std::string const& operation_;
  int links_ = 0;
};

}  // namespace

bool check_links(std::filesystem::path const& path, int directory, std::string const& operation) {
  auto const found = Walk(path, operation).run().status();
  struct stat opened {};
  if (::fstat(directory, &opened) != 0) throw_io(operation + ": fstat", path.string(), errno);
  return found.st_dev == opened.st_dev && found.st_ino == opened.st_ino;
}

void check_links_above(std::filesystem::path const& path, std::string const& operation) {
  auto existing = path;
  std::error_code ignored;
  while (existing.has_relative_path() && !std::filesystem::exists(existing, ignored)) existing = existing.parent_path();
  static_cast<void>(Walk(existing, operation).run());
}

}  // namespace crossrank::platform
