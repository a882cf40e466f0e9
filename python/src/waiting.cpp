#include "waiting.hpp"

#include <crossrank/spi/wait_hook.hpp>

#include "interpreter.hpp"

namespace crossrank::python {
namespace {

// Short enough that Ctrl-C seems immediate, and so long that the look costs nothing.
constexpr std::chrono::milliseconds look_every{20};

thread_local Wait* current = nullptr;

std::chrono::nanoseconds look() noexcept {
  if (current == nullptr) return std::chrono::nanoseconds::max();
  current->look();
  return current->has_raised() ? std::chrono::nanoseconds(-1) : look_every;
}

}  // namespace

Wait::Wait(std::function<void()> stop)
    : stop_(std::move(stop)), outer_(current), next_look_(std::chrono::steady_clock::now() + look_every) {
  current = this;
}

Wait::~Wait() {
  current = outer_;
  if (type_ == nullptr) return;
  Py_XDECREF(type_);
  Py_XDECREF(value_);
  Py_XDECREF(traceback_);
}

void Wait::look() noexcept {
  auto const now = std::chrono::steady_clock::now();
  if (type_ != nullptr || now < next_look_ || !interpreter_lives()) return;
  next_look_ = now + look_every;
  {
    AcquiredGil const gil;
    if (PyErr_CheckSignals() == 0) return;
    PyErr_Fetch(&type_, &value_, &traceback_);
  }
  stop_();
}

void Wait::rethrow() {
  if (type_ == nullptr) return;
  PyErr_Restore(std::exchange(type_, nullptr), std::exchange(value_, nullptr), std::exchange(traceback_, nullptr));
  throw nb::python_error();
}

void look_at_signals_now() noexcept { static_cast<void>(look()); }

void look_at_signals_in_waits() noexcept { spi::set_wait_hook(&look); }

}  // namespace crossrank::python
