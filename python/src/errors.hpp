#pragma once
#include <exception>
#include <string>

#include <nanobind/nanobind.h>

namespace crossrank::python {

/// Turns the library's errors into the classes of crossrank.errors. Call it once.
void translate_errors();

/// Throws a `UsageError`.
[[noreturn]] void refuse(char const* operation, std::string message, std::string expected = {}, std::string got = {},
                         std::string hint = {});

/// Returns the text of an exception, such as "ValueError: not a number".
[[nodiscard]] std::string raised_text(std::exception const& error);

/// Returns the type of an object as text, for errors.
[[nodiscard]] std::string type_text(nanobind::handle object);

}  // namespace crossrank::python
