#include "lib/core/text/name_hash.hpp"

#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace crossrank {
namespace {

char const anchor = 0;

}  // namespace

std::size_t hash_name(std::string_view name) noexcept {
  // The seed comes from address space randomization: no system call, no state, nothing to destroy.
  return XXH3_64bits_withSeed(name.data(), name.size(), reinterpret_cast<std::uintptr_t>(&anchor));
}

}  // namespace crossrank
