#include "own_thread.hpp"

#include <csignal>
#include <system_error>
#include <thread>

#include <pthread.h>

namespace crossrank::python {

bool start_own_thread(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  if (::pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
  bool started = true;
  try {
    std::thread(std::move(work)).detach();
  } catch (std::system_error const&) {
    started = false;
  }
  return ::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0 && started;
}

}  // namespace crossrank::python
