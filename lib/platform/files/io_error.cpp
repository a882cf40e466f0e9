#include "lib/platform/files/io_error.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/statvfs.h>

#include "lib/platform/system.hpp"

namespace crossrank::platform {

std::string errno_text(int error) {
  char const* const name = ::strerrorname_np(error);
  char const* const meaning = ::strerrordesc_np(error);
  std::string text = name != nullptr ? name : "errno " + std::to_string(error);
  if (meaning != nullptr) text += std::string(" (") + meaning + ')';
  return text;
}

namespace {

/// Says what went wrong, for callers that know only the error.
char const* default_message(int error) noexcept {
  switch (error) {
    case ENOENT: return "there is no such file or directory";
    case EACCES:
    case EPERM: return "the system does not permit this";
    case EEXIST: return "it exists already";
    case ENOTDIR: return "a part of the path is not a directory";
    case EISDIR: return "it is a directory";
    case EROFS: return "the file system is read-only";
    case ENOSPC: return "the file system is full";
    case EDQUOT: return "the disk quota is used up";
    default: return "the system call failed";
  }
}

/// Returns the most common hint, for callers without a better hint.
char const* default_hint(int error) noexcept {
  switch (error) {
    case EACCES:
    case EPERM: return "check the permissions of it and of the folders above it, or run as another user";
    case EEXIST: return "remove it, or choose another name";
    case EROFS: return "the file system is mounted read-only: use another directory";
    case ENOSPC:
    case EDQUOT: return "free space there, or use a directory on another file system";
    case EMFILE:
    case ENFILE: return "allow more open files (ulimit -n)";
    case ENOENT: return "check the path";
    case EFBIG: return "raise the limit of file sizes (ulimit -f)";
    case ELOOP: return "a symbolic link leads to itself or is not followed here: use the path of its target";
    case ENAMETOOLONG: return "use a shorter path";
    default: return "";
  }
}

}  // namespace

std::string hint_if_full(int directory, int error) {
  if (error != ENOSPC && error != EDQUOT) return {};
  struct statvfs space {};
  // Some file systems make inodes as they need them, and report 0 of 0.
  if (system().fstatvfs(directory, &space) == 0 && space.f_files > 0 && space.f_favail == 0)
    return "the file system has no free inodes: remove files there, or use another directory";
  return "free space there, raise the quota, or use another directory";
}

void throw_io(std::string operation, std::string resource, int error, std::string hint) {
  throw_io(ErrorInfo{.operation = std::move(operation),
                     .message = default_message(error),
                     .resource = std::move(resource),
                     .hint = std::move(hint)},
           error);
}

void throw_io(ErrorInfo info, int error) {
  if (info.hint.empty()) info.hint = default_hint(error);
  info.system = errno_text(error);
  info.system_errno = error;
  throw IoError(std::move(info));
}

bool is_own_limit(Error const& error) noexcept {
  int const number = error.info().system_errno;
  return number == EMFILE || number == ENFILE || number == ENOMEM;
}

}  // namespace crossrank::platform
