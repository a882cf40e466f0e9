#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

#include "lib/codec/json/json_document.hpp"

namespace crossrank::codec {

/// Parses JSON as Python's module `json` writes it, which has the numbers NaN, Infinity and -Infinity as well. Linear
/// time. Errors as for `parse_json`.
[[nodiscard]] Json parse_python_json(std::string_view text, JsonDocumentOptions const& options);

/// Returns a value as indented text that `parse_python_json` and Python read. Throws `UsageError` for binary values and
/// for text that is not UTF-8, which JSON does not have.
[[nodiscard]] std::string to_python_json(Json const& value);

}  // namespace crossrank::codec
