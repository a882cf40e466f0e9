#include "errors.hpp"

#include <cstddef>
#include <exception>
#include <utility>

#include <nanobind/stl/string.h>

#include <nanobind/nanobind.h>

#include <crossrank/error.hpp>

#include "json.hpp"

namespace crossrank::python {
namespace {

void raise(Error const& error) {
  try {
    auto const make = nanobind::module_::import_("crossrank.errors").attr("from_native");
    auto const object = make(to_string(error.code()), error.what(), error.report(), to_python(error.to_json()));
    PyErr_SetObject(object.type().ptr(), object.ptr());
  } catch (nanobind::python_error& raised) {  // of a signal handler, say KeyboardInterrupt
    raised.restore();
  }
}

std::string name_of_type(nanobind::handle type) {
  return printable_text(nanobind::steal(PyType_GetName(reinterpret_cast<PyTypeObject*>(type.ptr()))));
}

}  // namespace

void translate_errors() {
  nanobind::register_exception_translator([](std::exception_ptr const& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (Error const& error) {
      raise(error);
    }
  });
}

void refuse(char const* operation, std::string message, std::string expected, std::string got, std::string hint) {
  throw UsageError({.operation = operation,
                    .message = std::move(message),
                    .expected = std::move(expected),
                    .got = std::move(got),
                    .hint = std::move(hint)});
}

RaisedException::RaisedException(nanobind::python_error const& raised)
    : nanobind::python_error(raised),
      type_name_(name_of_type(raised.type())),
      message_(printable_text(raised.value())) {}

void mark_usable(nanobind::python_error const& raised) {
  if (PyObject_SetAttrString(raised.value().ptr(), "group_usable", Py_True) != 0) PyErr_Clear();
}

std::string raised_text(std::exception const& error) {
  auto const* const raised = dynamic_cast<nanobind::python_error const*>(&error);
  if (raised == nullptr) return error.what();
  RaisedException const named(*raised);
  return named.type_name() + ": " + named.message();
}

std::string reason_text(nanobind::handle why) {
  auto const text = printable_text(why);
  return PyExceptionInstance_Check(why.ptr()) ? name_of_type(why.type()) + ": " + text : text;
}

std::string printable_text(nanobind::handle object) {
  auto const text = nanobind::steal(PyObject_Str(object.ptr()));
  nanobind::object bytes;
  if (text.is_valid()) bytes = nanobind::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (bytes.is_valid() && PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) == 0)
    return {data, static_cast<std::size_t>(size)};
  PyErr_Clear();
  return "<no text>";
}

std::string type_text(nanobind::handle object) { return printable_text(object.type()); }

}  // namespace crossrank::python
