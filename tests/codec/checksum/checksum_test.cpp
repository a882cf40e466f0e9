// The digest does not depend on the processor or on how the bytes are split.
#include "lib/codec/checksum/checksum.hpp"

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace crossrank::codec {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (auto& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, equals_xxh3) {
  std::vector<std::byte> zeros(1 << 16);
  // Computed by the scalar code of xxHash.
  EXPECT_EQ(to_hex(checksum({})), "2d06800538d394c2");
  EXPECT_EQ(to_hex(checksum(zeros)), "33b202d302b65caa");
}

TEST(Checksum, does_not_depend_on_how_the_bytes_are_split) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (std::size_t const size : {1U, 240U, 1023U, 1024U, 1025U, 5000U, 300000U}) {
    auto const bytes = random_bytes(size, random);
    // xxHash has different code for small and large parts.
    for (std::size_t const max : {std::size_t{700}, std::size_t{9000}, size}) {
      StreamingChecksum running;
      for (std::size_t at = 0; at < bytes.size();) {
        auto const part = std::min(bytes.size() - at, 1 + random() % max);
        running.update(std::span(bytes).subspan(at, part));
        at += part;
      }
      EXPECT_EQ(running.digest(), checksum(bytes)) << size << " bytes in parts of at most " << max;
    }
  }
}

}  // namespace
}  // namespace crossrank::codec
