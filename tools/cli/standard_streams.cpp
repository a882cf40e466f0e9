#include "tools/cli/standard_streams.hpp"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace crossrank::tools {

void open_missing_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      [[maybe_unused]] int const opened = ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
    }
  }
}

}  // namespace crossrank::tools
