#include "waiting.hpp"

#include <crossrank/spi/wait_hook.hpp>

#include "interpreter.hpp"

namespace crossrank::python {
namespace {

// Short enough that Ctrl-C seems immediate, and so long that the check costs nothing.
constexpr std::chrono::milliseconds poll_interval{20};

// A job that stops by itself has ended before, and so has one whose files are only being renamed.
constexpr std::chrono::milliseconds insist_after{300};

thread_local Wait* current = nullptr;

std::chrono::nanoseconds poll_signals() noexcept {
  if (current == nullptr) return std::chrono::nanoseconds::max();
  current->poll();
  return current->has_raised() ? std::chrono::nanoseconds(-1) : poll_interval;
}

}  // namespace

Wait::Wait(std::function<void()> stop, std::function<void()> insist)
    : stop_(std::move(stop)),
      insist_(std::move(insist)),
      outer_(current),
      next_poll_(std::chrono::steady_clock::now() + poll_interval) {
  current = this;
}

Wait::~Wait() {
  current = outer_;
  if (type_ == nullptr) return;
  Py_XDECREF(type_);
  Py_XDECREF(value_);
  Py_XDECREF(traceback_);
}

void Wait::poll() noexcept {
  auto const now = std::chrono::steady_clock::now();
  if (now < next_poll_ || !interpreter_lives()) return;
  if (type_ != nullptr) {
    if (auto const insist = std::exchange(insist_, nullptr)) insist();
    return;
  }
  next_poll_ = now + poll_interval;
  {
    AcquiredGil const gil;
    if (PyErr_CheckSignals() == 0) return;
    PyErr_Fetch(&type_, &value_, &traceback_);
  }
  next_poll_ = now + insist_after;
  stop_();
}

void Wait::rethrow() {
  if (type_ == nullptr) return;
  PyErr_Restore(std::exchange(type_, nullptr), std::exchange(value_, nullptr), std::exchange(traceback_, nullptr));
  throw nb::python_error();
}

void poll_signals_now() noexcept { static_cast<void>(poll_signals()); }

void poll_signals_in_waits() noexcept { spi::set_wait_hook(&poll_signals); }

}  // namespace crossrank::python
