#pragma once
#include <csignal>
#include <ctime>

namespace crossrank::platform {

/// Keeps SIGPIPE from the calling thread for a scope, and discards one that a write in the scope has raised. For code
/// of others that writes to sockets without MSG_NOSIGNAL: the signal would end the process. Costs three system calls.
class SigpipeBlocked {
 public:
  SigpipeBlocked() noexcept {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    // A caller who has blocked the signal handles the pending one.
    if (sigismember(&before_, SIGPIPE) == 1) return;
    constexpr timespec no_wait{};
    while (sigtimedwait(&sigpipe_, nullptr, &no_wait) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(SigpipeBlocked const&) = delete;
  SigpipeBlocked& operator=(SigpipeBlocked const&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
};

}  // namespace crossrank::platform
