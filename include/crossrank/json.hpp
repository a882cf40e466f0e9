#pragma once
#include <nlohmann/json.hpp>

namespace crossrank {

/// JSON value that keeps the order of its keys, 64-bit integers and binary values.
using Json = nlohmann::ordered_json;

}  // namespace crossrank
