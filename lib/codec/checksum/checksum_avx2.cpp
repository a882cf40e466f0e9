// This file alone is compiled for AVX2 (lib/codec/CMakeLists.txt): nothing of the standard library that other files
// share may be instantiated here, or it would run on processors that lack it.
#include "lib/codec/checksum/checksum_avx2.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace crossrank::codec {

std::uint64_t checksum_avx2(void const* bytes, std::size_t count) noexcept { return XXH3_64bits(bytes, count); }

void update_avx2(void* state, void const* bytes, std::size_t count) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, count);
}

}  // namespace crossrank::codec
