#pragma once
#include <cstddef>
#include <cstdint>

namespace crossrank::codec {

/// Computes the XXH3 checksum on a processor with AVX2.
[[nodiscard]] std::uint64_t checksum_avx2(void const* bytes, std::size_t count) noexcept;
/// Adds bytes to `state`, an `XXH3_state_t`, on a processor with AVX2. xxHash renames that type in each file that
/// includes it inline.
void update_avx2(void* state, void const* bytes, std::size_t count) noexcept;

}  // namespace crossrank::codec
