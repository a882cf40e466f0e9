#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::tools {

/// Puts the command's flags in place of the options that the library names in its advice: "give `tp`" becomes
/// "give --tp".
[[nodiscard]] std::string with_flags(std::string_view text);

/// The same in all texts of a JSON value; keys stay.
[[nodiscard]] Json json_with_flags(Json value);

}  // namespace crossrank::tools
