#pragma once
#include <exception>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>

#include <crossrank/spi/foreign_exception.hpp>

namespace crossrank::python {

/// Turns the library's errors into the classes of crossrank.errors. Call it once.
void translate_errors();

/// Throws a `UsageError`.
[[noreturn]] void refuse(char const* operation, std::string message, std::string expected = {}, std::string got = {},
                         std::string hint = {});

/// A Python exception inside a call of the library. Its own caller gets it unchanged, other ranks its type and text.
class RaisedException final : public nanobind::python_error, public spi::ForeignException {
 public:
  explicit RaisedException(nanobind::python_error const& raised);
  [[nodiscard]] std::string type_name() const override { return type_name_; }
  [[nodiscard]] std::string message() const override { return message_; }

 private:
  std::string type_name_;
  std::string message_;
};

/// The type and text of an exception of a Python callback. The library tells them to the other ranks, and the caller
/// gets the exception itself at the end of the call. No Python object is inside, so any thread may drop it at any time.
class CallbackError final : public std::runtime_error, public spi::ForeignException {
 public:
  /// Takes type and text of an exception. Needs the GIL.
  explicit CallbackError(nanobind::python_error const& raised) : CallbackError(RaisedException(raised)) {}
  [[nodiscard]] std::string type_name() const override { return type_name_; }
  [[nodiscard]] std::string message() const override { return what(); }
  /// Returns whether it is no error but asks for the end, as KeyboardInterrupt does.
  [[nodiscard]] bool asks_to_stop() const noexcept { return asks_to_stop_; }

 private:
  explicit CallbackError(RaisedException const& raised)
      : std::runtime_error(raised.message()),
        type_name_(raised.type_name()),
        asks_to_stop_(!raised.matches(PyExc_Exception)) {}

  std::string type_name_;
  bool asks_to_stop_;
};

/// Says by an attribute of an exception that its group is usable, unless its type has no place for attributes. Needs
/// the GIL.
void mark_usable(nanobind::python_error const& raised);

/// Returns the text of an exception, such as "ValueError: not a number".
[[nodiscard]] std::string raised_text(std::exception const& error);

/// Returns why a rank aborts its group: the text of an exception with its type, or that of another object.
[[nodiscard]] std::string reason_text(nanobind::handle why);

/// Returns `str(object)` for people, with escapes for what UTF-8 does not have. Never raises a Python exception.
[[nodiscard]] std::string printable_text(nanobind::handle object);

/// Returns the type of an object as text, for errors.
[[nodiscard]] std::string type_text(nanobind::handle object);

}  // namespace crossrank::python
