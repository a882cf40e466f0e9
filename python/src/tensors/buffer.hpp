#pragma once
#include <nanobind/nanobind.h>

#include "interpreter.hpp"

namespace crossrank::python {

namespace nb = nanobind;

/// A view of a buffer, which it gives back in any thread.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (view_.obj == nullptr) return;
    InterpreterHold const hold;  // as for a SharedObject
    if (!hold) return;
    AcquiredGil const gil;
    PyBuffer_Release(&view_);
  }
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;

  [[nodiscard]] bool open(nb::handle object, int flags) { return PyObject_GetBuffer(object.ptr(), &view_, flags) == 0; }
  [[nodiscard]] Py_buffer& view() noexcept { return view_; }

 private:
  Py_buffer view_{};
};

}  // namespace crossrank::python
