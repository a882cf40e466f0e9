#pragma once
#include <string_view>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/json/json_builder.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {

/// Limits of a document that describes a model or a job, such as config.json.
inline constexpr JsonLimits description_limits{.bytes = max_config_bytes, .values = max_config_nodes, .depth = 128};
/// Limits of a document with an entry for each tensor or file, such as an index.
inline constexpr JsonLimits listing_limits{.bytes = std::size_t{128} << 20, .values = 8 * max_tensors, .depth = 32};

struct JsonDocumentOptions {
  JsonLimits limits = description_limits;
  RepeatedKey repeated_key = RepeatedKey::last_counts;
  ErrorInfo about{};  ///< operation, resource, hint and section of errors
};

/// Parses a JSON document in linear time. `FormatError` with the byte for malformed JSON, an integer that fits
/// neither in 64 bits nor exactly in a double, or more than a limit.
[[nodiscard]] Json parse_json(std::string_view text, JsonDocumentOptions const& options);

}  // namespace crossrank::codec
