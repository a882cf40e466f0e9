#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Returns why a safetensors file cannot have a tensor of this name, or nothing if it can.
[[nodiscard]] std::optional<std::string> find_name_error(std::string_view name);

}  // namespace crossrank::codec
