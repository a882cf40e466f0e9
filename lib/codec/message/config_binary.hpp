#pragma once
#include <cstddef>
#include <span>
#include <string>

#include <crossrank/json.hpp>

#include "lib/codec/io/limits.hpp"
#include "lib/codec/json/json_builder.hpp"

namespace crossrank::codec {

inline constexpr JsonLimits config_limits{
    .bytes = max_config_bytes, .values = max_config_nodes, .depth = max_config_depth};

/// Encodes a config as bytes for a peer, without converting numbers to digits (FORMAT.md, "tensor table"). `UsageError`
/// as for `encode_config`.
[[nodiscard]] std::string encode_config_binary(Json const& config, JsonLimits const& limits = config_limits);

/// Decodes the bytes of a config, every value with its type, in order. `FormatError` with section "config" and the byte
/// for repeated keys, malformed UTF-8, and more depth, values or bytes than the limits. Reads each byte only once,
/// because the peer may still write it.
[[nodiscard]] Json decode_config_binary(std::span<std::byte const> bytes, JsonLimits const& limits = config_limits);

}  // namespace crossrank::codec
