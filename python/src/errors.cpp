#include "errors.hpp"

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
      type_name_(nanobind::cast<std::string>(nanobind::str(raised.type().attr("__name__")))),
      message_(nanobind::cast<std::string>(nanobind::str(raised.value()))) {}

std::string raised_text(std::exception const& error) {
  auto const* const raised = dynamic_cast<nanobind::python_error const*>(&error);
  if (raised == nullptr) return error.what();
  RaisedException const named(*raised);
  return named.type_name() + ": " + named.message();
}

std::string type_text(nanobind::handle object) { return nanobind::cast<std::string>(nanobind::str(object.type())); }

}  // namespace crossrank::python
