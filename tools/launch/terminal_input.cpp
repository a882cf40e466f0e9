#include "tools/launch/terminal_input.hpp"

#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"

namespace crossrank::tools {

TerminalInput::TerminalInput(platform::Fd& rank_end) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  rank_end = platform::Fd(ends[0]);
  to_rank_ = platform::Fd(ends[1]);
  ::fcntl(to_rank_.get(), F_SETFL, O_NONBLOCK);
}

bool TerminalInput::wants_terminal() const noexcept {
  if (!to_rank_.valid() || !waiting_.empty()) return false;
  auto const foreground = ::tcgetpgrp(STDIN_FILENO);
  // A terminal that does not control this process lets everyone read.
  return foreground == ::getpgrp() || (foreground < 0 && errno == ENOTTY);
}

int TerminalInput::blocked_on() const noexcept { return waiting_.empty() ? -1 : to_rank_.get(); }

void TerminalInput::read_terminal() {
  std::array<char, 4096> buffer{};
  auto const got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (got > 0) {
    waiting_.assign(buffer.data(), as_size(got));
    flush();
  } else if (got == 0 || errno != EINTR) {
    (void)to_rank_.close();
  }
}

void TerminalInput::flush() {
  if (waiting_.empty()) return;
  auto const wrote = ::write(to_rank_.get(), waiting_.data(), waiting_.size());
  if (wrote >= 0) {
    waiting_.erase(0, as_size(wrote));
  } else if (errno != EAGAIN && errno != EINTR) {  // the rank has closed its input or has ended
    waiting_.clear();
    (void)to_rank_.close();
  }
}

}  // namespace crossrank::tools
