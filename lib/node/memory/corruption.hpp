#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace crossrank::node {

/// A value in the control segment that no rank can have written.
struct CorruptField {
  std::string operation{};  ///< that read it
  std::string place{};      ///< "group block 3"
  std::string field{};      ///< "decision"
  std::string expected{};
  std::string got{};
};

/// Throws the `FormatError` that names segment, place and field. Every process of the job can write to the control
/// segment. So each word that is used as an index, offset, count or size is checked where it is read.
[[noreturn]] void throw_corrupt(CorruptField word);

/// Copies a value out of shared memory once, so that the checked value is the one that is used, even if a peer writes
/// meanwhile.
template <class T>
[[nodiscard]] T load_once(T const& shared) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;  // NOLINT(cppcoreguidelines-pro-type-member-init): written whole below
  if constexpr (sizeof copy <= sizeof(std::uint64_t) && std::has_single_bit(sizeof copy)) {
    __atomic_load(&shared, &copy, __ATOMIC_RELAXED);
  } else {
    std::memcpy(&copy, &shared, sizeof copy);
  }
  asm volatile("" ::: "memory");  // the compiler may not read it again behind this
  return copy;
}

/// "group block 3".
[[nodiscard]] std::string block_text(std::uint32_t block);

}  // namespace crossrank::node
