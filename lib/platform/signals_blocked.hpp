#pragma once
#include <csignal>

namespace crossrank::platform {

/// Blocks all signals of the calling thread for a scope. A thread that is started in the scope inherits that: signals
/// belong to the threads of the program, so none is delivered to a thread of the library.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(SignalsBlocked const&) = delete;
  SignalsBlocked& operator=(SignalsBlocked const&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace crossrank::platform
