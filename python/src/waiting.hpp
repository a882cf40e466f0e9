#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include <nanobind/nanobind.h>

#include <crossrank/collective.hpp>

#include "errors.hpp"
#include "interpreter.hpp"
#include "tensors/streams.hpp"

namespace crossrank::python {

namespace nb = nanobind;

/// A call of the library that may wait. Python's signal handlers run meanwhile; when one raises, `stop` ends the call.
/// `insist` is called a little later, if the call has not ended then.
class Wait {
 public:
  explicit Wait(std::function<void()> stop, std::function<void()> insist = {});
  ~Wait();
  Wait(Wait const&) = delete;
  Wait& operator=(Wait const&) = delete;

  /// Runs Python's signal handlers now and then. Called without the GIL.
  void poll() noexcept;
  /// Returns whether a signal handler has raised an exception.
  [[nodiscard]] bool has_raised() const noexcept { return type_ != nullptr; }
  /// Throws the exception that a signal handler has raised. Needs the GIL.
  void rethrow();

 private:
  std::function<void()> stop_;
  std::function<void()> insist_;
  Wait* outer_;
  std::chrono::steady_clock::time_point next_poll_;
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

/// Lets every wait of the library call `Wait::poll`. Call it once.
void poll_signals_in_waits() noexcept;

/// Runs Python's signal handlers if the running call has not done so for a while. Called without the GIL.
void poll_signals_now() noexcept;

/// Runs `work` without the GIL, in the order of the thread's current streams. When a signal handler raises meanwhile,
/// calls `stop`, then `insist`, and throws that exception.
template <class Work>
auto run_waiting(std::function<void()> stop, std::function<void()> insist, Work&& work) {
  using Result = std::invoke_result_t<Work>;
  StreamScope const streams;
  Wait wait(std::move(stop), std::move(insist));
  std::exception_ptr failed;
  if constexpr (std::is_void_v<Result>) {
    {
      ReleasedGil const released;
      try {
        work();
      } catch (...) {
        failed = std::current_exception();
      }
    }
    wait.rethrow();
    if (failed) std::rethrow_exception(failed);
  } else {
    std::optional<Result> result;
    {
      ReleasedGil const released;
      try {
        result.emplace(work());
      } catch (...) {
        failed = std::current_exception();
      }
    }
    wait.rethrow();
    if (failed) std::rethrow_exception(failed);
    return std::move(*result);
  }
}

/// Does the same with `stop` alone.
template <class Work>
auto run_waiting(std::function<void()> stop, Work&& work) {
  return run_waiting(std::move(stop), {}, std::forward<Work>(work));
}

/// Does the same for a copy that may wait for a GPU. A signal handler's exception ends the wait.
template <class Work>
auto run_copy(Work&& work) {
  return run_waiting([] {}, std::forward<Work>(work));
}

/// Aborts a group on which a signal has interrupted a call.
inline void abort_interrupted(Collective const& group) { group.abort("a signal interrupted the Python program"); }

/// Does the same for a call on a group, which a signal handler's exception aborts.
template <class Work>
auto run_waiting(Collective const& group, Work&& work) {
  return run_waiting([&group] { abort_interrupted(group); }, std::forward<Work>(work));
}

/// Runs Python code inside a call of the library, which runs without the GIL. A Python exception reaches its own caller
/// unchanged and the other ranks as text.
template <class Code>
auto run_python(Code const& code) {
  AcquiredGil const gil;
  try {
    return code();
  } catch (nb::python_error const& raised) {
    throw RaisedException(raised);
  }
}

/// Runs `work` without the GIL, in the order of the thread's current streams, for a call that copies or does I/O and
/// cannot be interrupted.
template <class Work>
auto run_without_gil(Work&& work) {
  StreamScope const streams;
  ReleasedGil const released;
  return work();
}

}  // namespace crossrank::python
