#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::codec {

/// The name of a state file, which is never used twice. It identifies the writer and the file.
///
/// `rank_<rank>_state.<writer, 16 hex>-<counter, 8 hex>.safetensors`. A file that a gather removes at its end has
/// `gather` in place of `state`, so that no reader takes it for a state of the rank.
struct StateFileName {
  int rank = 0;
  std::uint64_t writer = 0;   ///< random number of the process
  std::uint32_t counter = 0;  ///< counter of that process
  bool of_gather = false;

  [[nodiscard]] std::string name() const;
  bool operator==(StateFileName const&) const noexcept = default;
};

/// Parses the result of `StateFileName::name`. Returns nothing for any other name.
[[nodiscard]] std::optional<StateFileName> parse_state_file_name(std::string_view name) noexcept;
/// Parses the last part of a path.
[[nodiscard]] std::optional<StateFileName> state_file_name_at(std::string_view path) noexcept;

}  // namespace crossrank::codec
