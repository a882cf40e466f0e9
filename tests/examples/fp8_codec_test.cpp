#include "examples/fp8_codec.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace {

/// Returns the nearest E4M3 number, or of two the one with an even last bit, by trying all numbers.
std::uint8_t nearest(double value) {
  int best = 0;
  for (int bits = 1; bits < 0x7f; ++bits) {
    auto const distance = std::abs(fp8::decode_e4m3(static_cast<std::uint8_t>(bits)) - std::abs(value));
    auto const least = std::abs(fp8::decode_e4m3(static_cast<std::uint8_t>(best)) - std::abs(value));
    if (distance < least || (distance == least && bits % 2 == 0)) best = bits;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

TEST(Fp8Codec, decodes_the_numbers_of_the_format) {
  EXPECT_EQ(fp8::decode_e4m3(0x7e), 448);
  EXPECT_EQ(fp8::decode_e4m3(0x38), 1);
  EXPECT_EQ(fp8::decode_e4m3(0x08), 0x1p-6);
  EXPECT_EQ(fp8::decode_e4m3(0x01), 0x1p-9);
  EXPECT_EQ(fp8::decode_e4m3(0xb8), -1);
  EXPECT_TRUE(std::isnan(fp8::decode_e4m3(0x7f)));
  EXPECT_TRUE(std::isnan(fp8::decode_e4m3(0xff)));
  EXPECT_TRUE(std::signbit(fp8::decode_e4m3(0x80)));
}

TEST(Fp8Codec, encodes_each_number_as_itself) {
  for (int bits = 0; bits < 256; ++bits) {
    auto const number = static_cast<std::uint8_t>(bits);
    EXPECT_EQ(fp8::encode_e4m3(fp8::decode_e4m3(number)), number);
  }
}

TEST(Fp8Codec, encodes_to_the_nearest_even) {
  auto const seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-12, 10);
  std::bernoulli_distribution negative;
  for (int i = 0; i < 20'000; ++i) {
    auto const value = std::exp2(exponent(random)) * (negative(random) ? -1 : 1);
    ASSERT_EQ(fp8::encode_e4m3(value), nearest(value)) << value << ", seed " << seed;
  }
  for (int bits = 0; bits < 0x7e; ++bits) {
    auto const low = fp8::decode_e4m3(static_cast<std::uint8_t>(bits));
    auto const high = fp8::decode_e4m3(static_cast<std::uint8_t>(bits + 1));
    auto const middle = (low + high) / 2;
    EXPECT_EQ(fp8::encode_e4m3(middle) % 2, 0) << middle;
    EXPECT_EQ(fp8::encode_e4m3(std::nextafter(middle, 0)), bits);
    EXPECT_EQ(fp8::encode_e4m3(std::nextafter(middle, 1000)), bits + 1);
  }
}

TEST(Fp8Codec, saturates) {
  EXPECT_EQ(fp8::encode_e4m3(1e9), 0x7e);
  EXPECT_EQ(fp8::encode_e4m3(-std::numeric_limits<double>::infinity()), 0xfe);
  EXPECT_EQ(fp8::encode_e4m3(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(fp8::encode_e4m3(std::numeric_limits<double>::quiet_NaN()) & 0x7f, 0x7f);
}

}  // namespace
