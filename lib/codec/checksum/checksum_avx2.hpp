#pragma once
#include <cstddef>
#include <cstdint>

namespace crossrank::codec {

/// The same functions of xxHash, compiled for processors with AVX2; call them on no other.
[[nodiscard]] std::uint64_t checksum_avx2(void const* bytes, std::size_t count) noexcept;
/// `state` is an `XXH3_state_t`, which xxHash calls by another name in each file that takes it in.
void update_avx2(void* state, void const* bytes, std::size_t count) noexcept;

}  // namespace crossrank::codec
