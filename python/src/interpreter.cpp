#include "interpreter.hpp"

#include <atomic>

#include <unistd.h>

namespace crossrank::python {
namespace {

constinit std::atomic<bool> alive{false};

[[noreturn]] void sleep_until_exit() noexcept {
  for (;;) ::pause();
}

}  // namespace

void watch_interpreter(nb::module_& module) {
  alive.store(true);
  // Functions of atexit run before the interpreter frees anything and before its threads may no longer call it.
  auto const leave = nb::cpp_function([] { alive.store(false); });
  module.attr("_leave") = leave;
  nb::module_::import_("atexit").attr("register")(leave);
}

bool interpreter_lives() noexcept { return alive.load(); }

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
  if (!object_.is_valid() || !interpreter_lives()) return;
  AcquiredGil const gil;
  object_.dec_ref();
}

}  // namespace crossrank::python
