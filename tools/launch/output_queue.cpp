#include "tools/launch/output_queue.hpp"

#include <algorithm>
#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"

namespace crossrank::tools {
namespace {

// A pipe that poll reports as writable accepts at least one page without blocking.
constexpr std::size_t piece = 4096;

bool writable(int fd) {
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

void OutputQueue::flush() {
  std::size_t done = 0;
  while (!broken() && done < waiting_.size() && writable(fd_)) {
    auto const wrote = ::write(fd_, waiting_.data() + done, std::min(piece, waiting_.size() - done));
    if (wrote >= 0) {
      done += as_size(wrote);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      failure_ = errno;
    }
  }
  if (broken()) done = waiting_.size();
  waiting_.erase(0, done);
}

}  // namespace crossrank::tools
