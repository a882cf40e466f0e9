#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Encodes a config as JSON text without loss: key order, 64-bit integers, all doubles, binary values (FORMAT.md).
/// `UsageError` for a value that JSON text cannot hold (malformed UTF-8, a discarded value) or that exceeds the limits.
[[nodiscard]] std::string encode_config(Json const& config);

/// Decodes the text of a config. `FormatError` with section "config" and the byte for repeated keys, integers beyond 64
/// bits, malformed tags, and more depth, values or bytes than the limits.
[[nodiscard]] Json decode_config(std::string_view text);

}  // namespace crossrank::codec
