#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::tools {

/// Replaces the names of the library's options in a hint by the flags of `command`: "give `tp`" becomes "give --tp".
///
/// `split` and `convert` have two grids: there "`tp`" becomes "--from-tp", and "`tp` of the result" becomes "--tp".
[[nodiscard]] std::string with_flags(std::string_view text, std::string_view command = {});

/// Does so in all strings of a JSON value, except keys.
[[nodiscard]] Json json_with_flags(Json value, std::string_view command = {});

}  // namespace crossrank::tools
