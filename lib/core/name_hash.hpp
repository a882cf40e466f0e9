#pragma once
#include <cstddef>
#include <string_view>

namespace crossrank {

/// Hash of a name for tables of this process only; differs from run to run, so that a file cannot bring names that
/// collide.
[[nodiscard]] std::size_t hash_name(std::string_view name) noexcept;

/// The same, for standard containers.
struct NameHash {
  [[nodiscard]] std::size_t operator()(std::string_view name) const noexcept { return hash_name(name); }
};

}  // namespace crossrank
