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

#include <crossrank/spi/network.hpp>
#include <crossrank/spi/wait_hook.hpp>

namespace crossrank::tools {
namespace {

sigset_t interrupts() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int const number : interrupt_signals) {
    struct sigaction now {};
    // Keep an ignored signal ignored: nohup starts the program that way on purpose.
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::sigaddset(&set, number);
  }
  return set;
}

/// The handler of this process, for the wait hook.
std::atomic<InterruptHandler const*> current{nullptr};

}  // namespace

std::chrono::nanoseconds InterruptHandler::end_waits() noexcept {
  auto const* const handler = current.load(std::memory_order_acquire);
  if (handler == nullptr || handler->working_.load(std::memory_order_relaxed)) return std::chrono::hours(1);
  return std::chrono::milliseconds(handler->signal() != 0 ? -1 : 10);
}

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
  current.store(this, std::memory_order_release);
  spi::set_wait_hook(&end_waits);
}

InterruptHandler::~InterruptHandler() {
  spi::set_wait_hook(nullptr);
  current.store(nullptr, std::memory_order_release);
  std::uint64_t const one = 1;
  [[maybe_unused]] auto const put = ::write(over_.get(), &one, sizeof one);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &original_, nullptr);
  auto const set = interrupts();  // the launcher may have blocked them for this handler
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int InterruptHandler::await_signal() const {
  static_cast<void>(spi::poll_until([this] { return signal() != 0; }, std::chrono::milliseconds(200)));
  return signal();
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
  if (request_.take(number)) {
    stop(number);
    return;
  }
  // A second signal ends the process as if there were no handler.
  ::signal(number, SIG_DFL);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, number);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(number);
}

}  // namespace crossrank::tools
