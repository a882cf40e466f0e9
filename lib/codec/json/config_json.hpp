#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// JSON text that keeps every value of a config: key order, 64-bit integers, all doubles, binary values (FORMAT.md).
/// `UsageError` for what no JSON text can hold (malformed UTF-8, a discarded value) or what passes the limits.
[[nodiscard]] std::string encode_config(Json const& config);

/// The inverse. `FormatError` with section "config" and the byte, for text that `encode_config` does not write as well:
/// repeated keys, integers beyond 64 bits, malformed tags, more depth, values or bytes than the limits.
[[nodiscard]] Json decode_config(std::string_view text);

}  // namespace crossrank::codec
