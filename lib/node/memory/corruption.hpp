#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace crossrank::node {

/// A word of the control segment that no rank can have written there.
struct CorruptField {
  std::string operation{};  ///< that has read it
  std::string place{};      ///< "group block 3"
  std::string field{};      ///< "decision"
  std::string expected{};
  std::string got{};
};

/// Throws the `FormatError` that names segment, place and field. The control segment is writable for every process of
/// the job: each word that is used as an index, an offset, a count or a size is checked where it is read, and comes
/// here when it is none.
[[noreturn]] void throw_corrupt(CorruptField word);

/// Copies a value out of shared memory, once: what is checked afterwards is what is used, whatever a peer writes there
/// meanwhile.
template <class T>
[[nodiscard]] T load_once(T const& shared) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
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
