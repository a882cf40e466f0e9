#include "interpreter.hpp"

#include <atomic>

namespace crossrank::python {
namespace {

constinit std::atomic<bool> alive{false};

}  // namespace

void watch_interpreter(nb::module_& module) {
  alive.store(true);
  // Functions of atexit run before the interpreter frees anything and before its threads may no longer call it.
  auto const leave = nb::cpp_function([] { alive.store(false); });
  module.attr("_leave") = leave;
  nb::module_::import_("atexit").attr("register")(leave);
}

bool interpreter_lives() noexcept { return alive.load(); }

SharedObject::~SharedObject() {
  if (!object_.is_valid() || !interpreter_lives()) return;
  nb::gil_scoped_acquire const gil;
  object_.dec_ref();
}

}  // namespace crossrank::python
