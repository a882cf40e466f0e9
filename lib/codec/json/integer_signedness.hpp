#pragma once
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

namespace crossrank::codec {

/// Encodes which non-negative integers of a config have a signed type. JSON text does not distinguish them, and a
/// reader makes them unsigned. The result has the lengths of runs in the order of the text, alternately unsigned and
/// signed, as in "3,1". It is empty when all are unsigned.
[[nodiscard]] std::string encode_integer_signedness(Json const& config);

/// Restores the signed types of the integers of a decoded config. Returns false when the runs do not match the config.
[[nodiscard]] bool restore_integer_signedness(std::string_view runs, Json& config);

}  // namespace crossrank::codec
