#pragma once
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace crossrank::platform {

/// Returns `fd`, or a duplicate when it has the number of a standard stream that the process has closed: what the
/// process prints must not go into a file of ours. Keeps -1 and `errno`. A duplicate closes on exec.
[[nodiscard]] inline int above_standard_streams(int fd) noexcept {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int const above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int const saved = errno;
  ::close(fd);
  errno = saved;
  return above;
}

}  // namespace crossrank::platform
