#include "tools/cli/interrupt_handler.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace crossrank::tools {
namespace {

sigset_t interrupts() {
  sigset_t set;
  ::sigemptyset(&set);
  // Batch systems announce the end of a job by SIGUSR1, SIGUSR2 or SIGXCPU.
  for (int const number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU}) {
    struct sigaction now {};
    // Keep an ignored signal ignored: nohup starts the program that way on purpose.
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::sigaddset(&set, number);
  }
  return set;
}

}  // namespace

InterruptHandler::InterruptHandler() {
  auto const set = interrupts();
  ::pthread_sigmask(SIG_BLOCK, &set, &original_);
  signals_ = platform::Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  over_ = platform::Fd(::eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !over_) {
    int const error = errno;
    ::pthread_sigmask(SIG_SETMASK, &original_, nullptr);
    throw std::system_error(error, std::generic_category(), "signalfd");
  }
  thread_ = std::thread([this] { watch(); });
}

InterruptHandler::~InterruptHandler() {
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const put = ::write(over_.get(), &one, sizeof one);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &original_, nullptr);
}

void InterruptHandler::stop(int signal) noexcept {
  int none = 0;
  signal_.compare_exchange_strong(none, signal, std::memory_order_relaxed);
  stop_.request_stop();
}

void InterruptHandler::watch() noexcept {
  for (;;) {
    std::array<pollfd, 2> fds{pollfd{signals_.get(), POLLIN, 0}, pollfd{over_.get(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0) take();
  }
}

void InterruptHandler::take() noexcept {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  auto const number = static_cast<int>(info.ssi_signo);
  if (request_.repeats(number)) return;
  if (working_.load(std::memory_order_relaxed) && request_.take(number)) {
    stop(number);
    return;
  }
  // Second signal, or still waiting for ranks that may never connect: end as if there were no handler.
  ::signal(number, SIG_DFL);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, number);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(number);
}

}  // namespace crossrank::tools
