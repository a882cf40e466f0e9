// Only this file is compiled for AVX2 (lib/codec/CMakeLists.txt). It must not instantiate templates of the standard
// library that other files share, or AVX2 code would run on processors without it.
#include "lib/codec/checksum/checksum_avx2.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace crossrank::codec {

std::uint64_t checksum_avx2(void const* bytes, std::size_t count) noexcept { return XXH3_64bits(bytes, count); }

void update_avx2(void* state, void const* bytes, std::size_t count) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, count);
}

}  // namespace crossrank::codec
