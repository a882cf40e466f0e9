#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// What a pickle holds that mentions a class which is known and not read.
struct UnsupportedGlobal {
  std::string_view message{};
  std::string_view hint{};
};

/// Explains a class whose values are not read: sharded tensors in archives, plans of a save in metadata. Nothing for
/// all others.
[[nodiscard]] std::optional<UnsupportedGlobal> explain_unsupported_global(std::string_view global) noexcept;

}  // namespace crossrank::codec
