#pragma once
#include <nanobind/nanobind.h>

#include <crossrank/json.hpp>

namespace crossrank::python {

/// Most levels of a nested value. Keeps a list that contains itself from using up the stack.
inline constexpr int max_levels = 64;

/// Returns the JSON value of None, bool, int, float, str, bytes, list, tuple and dict with str keys, nested. A tuple
/// becomes a list. `UsageError` for another type, an integer beyond 64 bits, and more than 64 levels.
[[nodiscard]] Json to_json(nanobind::handle value);

/// Returns the Python object of a JSON value. Binary values become bytes.
[[nodiscard]] nanobind::object to_python(Json const& value);

}  // namespace crossrank::python
