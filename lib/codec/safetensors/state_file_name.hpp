#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// Who wrote a state file, and which of its files it is: a name that is used once, ever.
///
/// `rank_<rank>_state.<writer, 16 hex>-<counter, 8 hex>.safetensors`
struct StateFileName {
  int rank = 0;
  std::uint64_t writer = 0;   ///< drawn at random, once per process
  std::uint32_t counter = 0;  ///< of that process

  [[nodiscard]] std::string name() const;
  bool operator==(StateFileName const&) const noexcept = default;
};

/// The inverse of `StateFileName::name`; nothing for any other name.
[[nodiscard]] std::optional<StateFileName> parse_state_file_name(std::string_view name) noexcept;
/// The same for the last part of a path.
[[nodiscard]] std::optional<StateFileName> state_file_name_at(std::string_view path) noexcept;

}  // namespace crossrank::codec
