#include "lib/codec/checksum/crc32.hpp"

#include <random>

#include <gtest/gtest.h>

#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {
namespace {

TEST(Crc32, equals_the_standard) {
  EXPECT_EQ(crc32(0, to_bytes("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32(0, {}), 0U);
}

TEST(Crc32, is_the_same_by_folding_by_table_and_in_parts) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Bytes bytes(5000);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  for (std::size_t size = 0; size < 700; ++size) {
    auto const part = std::span(bytes).subspan(random() % 100, size);
    auto const start = static_cast<std::uint32_t>(random());
    EXPECT_EQ(crc32(start, part), crc32_by_table(start, part)) << size;
  }
  auto const whole = crc32(0, bytes);
  for (std::size_t split = 0; split < bytes.size(); split += 61)
    EXPECT_EQ(crc32(crc32(0, std::span(bytes).first(split)), std::span(bytes).subspan(split)), whole) << split;
}

TEST(Crc32, combines_the_crcs_of_two_parts) {
  Bytes bytes(70'001);
  std::mt19937 random(11);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  for (std::size_t const split : {0U, 1U, 7U, 4096U, 65'537U, 70'000U, 70'001U}) {
    auto const front = std::span(bytes).first(split);
    auto const back = std::span(bytes).subspan(split);
    EXPECT_EQ(crc32_combine(crc32(0, front), crc32(0, back), back.size()), crc32(0, bytes)) << split;
  }
  // More zeros than fit in memory: combining in one step must equal combining in two steps.
  constexpr auto zeros = std::uint64_t{1} << 41U;
  EXPECT_EQ(crc32_combine(0x12345678U, 0, 2 * zeros), crc32_combine(crc32_combine(0x12345678U, 0, zeros), 0, zeros));
}

}  // namespace
}  // namespace crossrank::codec
