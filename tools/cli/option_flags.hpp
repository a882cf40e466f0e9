#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::tools {

/// Replaces the names of the library's options in a hint by the flags of the command: "give `tp`" becomes "give --tp".
[[nodiscard]] std::string with_flags(std::string_view text);

/// Does so in all strings of a JSON value, except keys.
[[nodiscard]] Json json_with_flags(Json value);

}  // namespace crossrank::tools
