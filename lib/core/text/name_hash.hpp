#pragma once
#include <cstddef>
#include <string_view>

namespace crossrank {

/// Returns a hash of a name for tables of this process. It differs from run to run, so that a file cannot contain names
/// that collide on purpose.
[[nodiscard]] std::size_t hash_name(std::string_view name) noexcept;

/// `hash_name` for standard containers.
struct NameHash {
  [[nodiscard]] std::size_t operator()(std::string_view name) const noexcept { return hash_name(name); }
};

}  // namespace crossrank
