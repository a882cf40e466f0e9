#pragma once
#include <cstddef>
#include <span>
#include <string>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// A config as bytes for a peer on this node: nothing is turned into digits and back (FORMAT.md, "tensor table").
/// `UsageError` for what `encode_config` refuses as well.
[[nodiscard]] std::string encode_config_binary(Json const& config);

/// The inverse: every value with its type, in order. `FormatError` with section "config" and the byte, for bytes that
/// `encode_config_binary` does not write: repeated keys, malformed UTF-8, more depth, values or bytes than the limits.
/// Each byte is read once, as the peer may still write it.
[[nodiscard]] Json decode_config_binary(std::span<std::byte const> bytes);

}  // namespace crossrank::codec
