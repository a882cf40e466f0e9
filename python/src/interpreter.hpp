#pragma once
#include <utility>

#include <nanobind/nanobind.h>

namespace crossrank::python {

namespace nb = nanobind;

/// Notes when the interpreter begins to shut down. Call it once, when the module is loaded.
void watch_interpreter(nb::module_& module);

/// Returns whether Python may still be called. False from the interpreter's shutdown on.
[[nodiscard]] bool interpreter_lives() noexcept;

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
