#include "interpreter.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace crossrank::python {
namespace {

using namespace std::chrono_literals;

// A callback of the user may run for long. Then the exit goes on without it.
constexpr auto longest_wait_for_holds = 5s;

// Both atomics are sequentially consistent: a thread that does not see the end is seen by the wait for the holds.
constinit std::atomic<bool> alive{false};
constinit std::atomic<int> holds{0};

[[noreturn]] void sleep_until_exit() noexcept {
  for (;;) ::pause();
}

void leave_interpreter() {
  alive.store(false);
  ReleasedGil const released;
  auto const limit = std::chrono::steady_clock::now() + longest_wait_for_holds;
  while (holds.load() != 0 && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
}

}  // namespace

void watch_interpreter(nb::module_& module) {
  alive.store(true);
  // Functions of atexit run before the interpreter frees anything and before its threads may no longer call it.
  auto const leave = nb::cpp_function(&leave_interpreter);
  module.attr("_leave") = leave;
  nb::module_::import_("atexit").attr("register")(leave);
  ::pthread_atfork(nullptr, nullptr, [] { holds.store(0); });  // a child has no other threads
}

bool interpreter_lives() noexcept { return alive.load(); }

InterpreterHold::InterpreterHold() noexcept {
  holds.fetch_add(1);
  alive_ = alive.load();
}

InterpreterHold::~InterpreterHold() { holds.fetch_sub(1); }

ReleasedGil::~ReleasedGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {  // the unwinding of pthread_exit, which must not end
    sleep_until_exit();
  }
}

AcquiredGil::AcquiredGil() noexcept {
  try {
    state_ = PyGILState_Ensure();
  } catch (...) {
    sleep_until_exit();
  }
}

SharedObject::~SharedObject() {
  if (!object_.is_valid()) return;
  // A thread of the library, which the exit of the process waits for, may drop a tensor while the interpreter ends.
  InterpreterHold const hold;
  if (!hold) return;
  AcquiredGil const gil;
  object_.dec_ref();
}

}  // namespace crossrank::python
