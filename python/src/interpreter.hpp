#pragma once
#include <utility>

#include <nanobind/nanobind.h>

namespace crossrank::python {

namespace nb = nanobind;

/// Notes when the interpreter begins to shut down. Call it once, when the module is loaded.
void watch_interpreter(nb::module_& module);

/// Returns whether Python may still be called. False from the interpreter's shutdown on.
[[nodiscard]] bool interpreter_lives() noexcept;

/// Lets the interpreter's shutdown wait for the end of the scope, for a thread of the library that calls Python.
///
/// Without it, the shutdown could begin while the thread waits for the GIL. The thread would then sleep until the
/// process exits, and the exit may wait for this thread.
class InterpreterHold {
 public:
  InterpreterHold() noexcept;
  ~InterpreterHold();
  InterpreterHold(InterpreterHold const&) = delete;
  InterpreterHold& operator=(InterpreterHold const&) = delete;
  /// Returns whether Python may be called in this scope.
  [[nodiscard]] explicit operator bool() const noexcept { return alive_; }

 private:
  bool alive_;
};

/// Releases the GIL until the end of the scope.
///
/// Python 3.11 to 3.13 end a thread that takes the GIL after the interpreter's shutdown by `pthread_exit`. Its
/// unwinding ends the process where it meets a `noexcept` function, a destructor say, or a handler that catches
/// everything. This class and `AcquiredGil` let such a thread sleep until the process exits, as Python does from 3.14
/// on.
class ReleasedGil {
 public:
  /// Needs the GIL.
  ReleasedGil() noexcept : state_(PyEval_SaveThread()) {}
  ~ReleasedGil();
  ReleasedGil(ReleasedGil const&) = delete;
  ReleasedGil& operator=(ReleasedGil const&) = delete;

 private:
  PyThreadState* state_;
};

/// Holds the GIL until the end of the scope, in any thread.
class AcquiredGil {
 public:
  AcquiredGil() noexcept;
  ~AcquiredGil() { PyGILState_Release(state_); }
  AcquiredGil(AcquiredGil const&) = delete;
  AcquiredGil& operator=(AcquiredGil const&) = delete;

 private:
  PyGILState_STATE state_;
};

/// A reference to a Python object that any thread may drop, without the GIL. It leaks the object after the
/// interpreter's shutdown, because nothing can free it then.
class SharedObject {
 public:
  SharedObject() noexcept = default;
  /// Takes over a reference. Needs the GIL.
  explicit SharedObject(nb::object object) noexcept : object_(object.release()) {}
  SharedObject(SharedObject&& other) noexcept : object_(std::exchange(other.object_, nb::handle())) {}
  SharedObject& operator=(SharedObject&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  SharedObject(SharedObject const&) = delete;
  SharedObject& operator=(SharedObject const&) = delete;
  ~SharedObject();

  [[nodiscard]] nb::handle get() const noexcept { return object_; }

 private:
  nb::handle object_{};
};

}  // namespace crossrank::python
