#pragma once
#include <span>
#include <string>
#include <string_view>

#include "lib/codec/safetensors/header_parser.hpp"

namespace crossrank::codec {

/// Throws the `UsageError` for a tensor that a file does not have. Its hint names the tensor of the file whose name is
/// most similar. `resource` names the file.
[[noreturn]] void refuse_unknown_tensor(std::string operation, std::string_view name,
                                        std::span<HeaderEntry const> entries, std::string resource);

}  // namespace crossrank::codec
