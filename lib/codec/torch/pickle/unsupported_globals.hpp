#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// A known class whose values are not read.
struct UnsupportedGlobal {
  std::string_view message{};
  std::string_view hint{};
};

/// Explains a class whose values are not read: sharded tensors in archives. Returns nothing for all other classes.
[[nodiscard]] std::optional<UnsupportedGlobal> explain_unsupported_global(std::string_view global) noexcept;

}  // namespace crossrank::codec
