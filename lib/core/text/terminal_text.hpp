#pragma once
#include <string>
#include <string_view>

namespace crossrank {

/// Makes text that comes from files, peers or the environment safe for a terminal, in one line.
///
/// Control characters, line breaks, malformed UTF-8 and the characters that change the direction of text become
/// escapes ("\x1b", "\n", "\u202e"). All other text stays as it is.
[[nodiscard]] std::string terminal_text(std::string_view text);

}  // namespace crossrank
