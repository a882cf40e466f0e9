#include "tools/launch/signal_fd.hpp"

#include <cerrno>
#include <system_error>

#include <sys/signalfd.h>
#include <unistd.h>

#include "tools/cli/interrupt_handler.hpp"

namespace crossrank::tools {

// A signal that was ignored at our start (nohup) stays ignored, here and in the ranks, and never arrives.
SignalFd::SignalFd() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (int const number : {SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD}) ::sigaddset(&wanted, number);
  for (int const number : interrupt_signals) ::sigaddset(&wanted, number);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD,
           SIG_DFL);  // if SIGCHLD stayed ignored, the kernel would reap the ranks and their exit codes would be lost
  if (::sigprocmask(SIG_BLOCK, &wanted, &original_) != 0)
    throw std::system_error(errno, std::generic_category(), "sigprocmask");
  fd_ = platform::Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw std::system_error(errno, std::generic_category(), "signalfd");
}

sigset_t SignalFd::mask_without_interrupts() const noexcept {
  auto mask = original_;
  for (int const number : interrupt_signals) ::sigaddset(&mask, number);
  return mask;
}

std::optional<int> SignalFd::next() const {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace crossrank::tools
