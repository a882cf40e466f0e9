#include "lib/tensor/small_float.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

std::vector<Dtype> const signed_formats{Dtype::f16,     Dtype::bf16,        Dtype::f8_e5m2,
                                        Dtype::f8_e4m3, Dtype::f8_e5m2fnuz, Dtype::f8_e4m3fnuz,
                                        Dtype::f6_e2m3, Dtype::f6_e3m2,     Dtype::f4};

/// Returns the finite non-negative numbers of a format in the order of their codes, which is ascending.
std::vector<float> numbers_of(Dtype dtype) {
  std::vector<float> numbers;
  for (std::uint32_t code = 0; code < 1U << (bits_of(dtype) - 1); ++code) {
    auto const value = decode_small_float(dtype, static_cast<std::uint16_t>(code));
    if (std::isfinite(value)) numbers.push_back(value);
  }
  return numbers;
}

TEST(SmallFloat, decodes_known_values_of_each_format) {
  EXPECT_EQ(decode_small_float(Dtype::f16, 0x3c00), 1.0F);
  EXPECT_EQ(decode_small_float(Dtype::f16, 0x7bff), 65504.0F);
  EXPECT_EQ(decode_small_float(Dtype::f16, 0x0001), 0x1p-24F);
  EXPECT_EQ(decode_small_float(Dtype::f16, 0xfc00), -inf);
  EXPECT_EQ(decode_small_float(Dtype::bf16, 0x3f80), 1.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e4m3, 0x7e), 448.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e4m3, 0x01), 0x1p-9F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e5m2, 0x7b), 57344.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e5m2, 0x7c), inf);
  EXPECT_EQ(decode_small_float(Dtype::f8_e4m3fnuz, 0x7f), 240.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e5m2fnuz, 0x7f), 57344.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e4m3fnuz, 0x01), 0x1p-10F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e8m0, 127), 1.0F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e8m0, 0), 0x1p-127F);
  EXPECT_EQ(decode_small_float(Dtype::f8_e8m0, 254), 0x1p127F);
  EXPECT_EQ(decode_small_float(Dtype::f4, 7), 6.0F);
  EXPECT_EQ(decode_small_float(Dtype::f4, 1), 0.5F);
  EXPECT_EQ(decode_small_float(Dtype::f4, 0xf), -6.0F);
  EXPECT_EQ(decode_small_float(Dtype::f6_e2m3, 0x1f), 7.5F);
  EXPECT_EQ(decode_small_float(Dtype::f6_e3m2, 0x1f), 28.0F);
}

TEST(SmallFloat, has_nan_only_where_the_format_does) {
  auto const count = [](Dtype dtype) {
    int nans = 0;
    for (std::uint32_t code = 0; code < 1U << bits_of(dtype); ++code) {
      nans += std::isnan(decode_small_float(dtype, static_cast<std::uint16_t>(code))) ? 1 : 0;
    }
    return nans;
  };
  EXPECT_EQ(count(Dtype::f16), 2 * 1023);
  EXPECT_EQ(count(Dtype::bf16), 2 * 127);
  EXPECT_EQ(count(Dtype::f8_e5m2), 6);
  EXPECT_EQ(count(Dtype::f8_e4m3), 2);
  EXPECT_EQ(count(Dtype::f8_e4m3fnuz), 1);
  EXPECT_EQ(count(Dtype::f8_e5m2fnuz), 1);
  EXPECT_EQ(count(Dtype::f8_e8m0), 1);
  EXPECT_EQ(count(Dtype::f4) + count(Dtype::f6_e2m3) + count(Dtype::f6_e3m2), 0);
}

TEST(SmallFloat, round_trips_each_code) {
  auto formats = signed_formats;
  formats.push_back(Dtype::f8_e8m0);
  for (auto const dtype : formats) {
    for (std::uint32_t code = 0; code < 1U << bits_of(dtype); ++code) {
      auto const value = decode_small_float(dtype, static_cast<std::uint16_t>(code));
      auto const again = encode_small_float(dtype, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode_small_float(dtype, again))) << name_of(dtype) << " " << code;
      } else {
        EXPECT_EQ(again, code) << name_of(dtype);
      }
    }
  }
}

TEST(SmallFloat, rounds_to_nearest_even_between_all_neighbours) {
  for (auto const dtype : signed_formats) {
    auto const numbers = numbers_of(dtype);
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      // halve before adding: near the largest BF16 the sum would overflow
      auto const middle = numbers[i] / 2 + numbers[i + 1] / 2;
      if (middle < std::numeric_limits<float>::min()) continue;  // not exact between subnormals of BF16
      auto const even = static_cast<std::uint16_t>(i % 2 == 0 ? i : i + 1);
      ASSERT_EQ(encode_small_float(dtype, middle), even) << name_of(dtype) << " " << middle;
      ASSERT_EQ(encode_small_float(dtype, std::nextafter(middle, 0.0F)), i) << name_of(dtype);
      ASSERT_EQ(encode_small_float(dtype, std::nextafter(middle, inf)), i + 1) << name_of(dtype);
      auto const negative = decode_small_float(dtype, encode_small_float(dtype, -middle));
      ASSERT_EQ(negative, -decode_small_float(dtype, even)) << name_of(dtype);
    }
  }
}

TEST(SmallFloat, overflows_to_infinity_nan_or_the_largest_number) {
  for (auto const dtype : signed_formats) {
    auto const numbers = numbers_of(dtype);
    auto const largest = numbers.back();
    auto const step = largest - numbers[numbers.size() - 2];
    EXPECT_EQ(encode_small_float(dtype, largest + step / 4), numbers.size() - 1) << name_of(dtype);
    for (float const beyond : {largest + step, inf}) {
      EXPECT_EQ(encode_small_float(dtype, beyond, Overflow::saturate), numbers.size() - 1) << name_of(dtype);
      EXPECT_EQ(decode_small_float(dtype, encode_small_float(dtype, -beyond, Overflow::saturate)), -largest);
    }
  }
  EXPECT_EQ(encode_small_float(Dtype::f16, 65520.0F), 0x7c00);
  EXPECT_EQ(encode_small_float(Dtype::f16, -1e9F), 0xfc00);
  EXPECT_EQ(encode_small_float(Dtype::bf16, std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(encode_small_float(Dtype::f8_e5m2, 61440.0F), 0x7c);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, 464.0F), 0x7e);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, 465.0F), 0x7f);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, -inf), 0xff);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3fnuz, 1e6F), 0x80);
  EXPECT_EQ(encode_small_float(Dtype::f4, 1e6F), 7);
  EXPECT_EQ(encode_small_float(Dtype::f4, -inf), 0xf);
}

TEST(SmallFloat, keeps_nan_and_the_sign_of_zero_if_the_format_has_them) {
  EXPECT_EQ(encode_small_float(Dtype::f16, nan), 0x7e00);
  EXPECT_EQ(encode_small_float(Dtype::bf16, nan), 0x7fc0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e5m2, nan), 0x7f);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, -nan), 0xff);
  EXPECT_EQ(encode_small_float(Dtype::f8_e5m2fnuz, -nan), 0x80);
  EXPECT_EQ(encode_small_float(Dtype::f4, nan), 7);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, nan, Overflow::saturate), 0x7f);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, -0.0F), 0x80);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3, -1e-20F), 0x80);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3fnuz, -0.0F), 0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e4m3fnuz, -1e-20F), 0);
  // 0x7f800001 is a signalling NaN whose payload is truncated to zero. It must not become infinity.
  float signalling{};
  std::uint32_t const bits = 0x7f80'0001U;
  std::memcpy(&signalling, &bits, sizeof bits);
  EXPECT_EQ(encode_small_float(Dtype::bf16, signalling), 0x7fc0);
  EXPECT_EQ(encode_small_float(Dtype::f16, signalling), 0x7e00);
}

TEST(SmallFloat, rounds_scales_to_the_nearest_power) {
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 1.4999F), 127);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 1.5F), 128);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 3.0F), 129);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 0.0F), 0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, -0.0F), 0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 0x1p-149F), 0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 0x1.7p-127F), 0);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, 0x1.8p-127F), 1);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, -1.0F), 0xff);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, nan), 0xff);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, inf), 0xff);
  EXPECT_EQ(encode_small_float(Dtype::f8_e8m0, inf, Overflow::saturate), 254);
}

TEST(SmallFloat, converts_packed_runs_in_stream_order) {
  auto const seed = std::random_device{}();
  std::mt19937 random(seed);
  auto formats = signed_formats;
  formats.push_back(Dtype::f8_e8m0);
  for (auto const dtype : formats) {
    std::size_t const count = 4 * 37;
    std::vector<std::byte> codes(count * bits_of(dtype) / 8);
    for (auto& byte : codes) byte = static_cast<std::byte>(random() & 0x3fU);  // so that no 16-bit code is NaN
    std::vector<float> numbers(count);
    decode_small_floats(dtype, codes, numbers);
    std::vector<std::byte> again(codes.size(), std::byte{0xff});
    encode_small_floats(dtype, numbers, again);
    EXPECT_EQ(again, codes) << name_of(dtype) << ", seed " << seed;
  }
  std::vector<float> two(2);
  decode_small_floats(Dtype::f4, std::vector{std::byte{0x72}}, two);
  EXPECT_EQ(two, (std::vector{1.0F, 6.0F}));
  std::vector<float> four(4);
  decode_small_floats(Dtype::f6_e3m2, std::vector{std::byte{0x1f}, std::byte{0}, std::byte{0xfc}}, four);
  EXPECT_EQ(four, (std::vector{28.0F, 0.0F, 0.0F, -28.0F}));
}

TEST(SmallFloat, refuses_other_formats_and_sizes) {
  std::vector<std::byte> codes(3);
  std::vector<float> numbers(2);
  EXPECT_THROW(decode_small_floats(Dtype::f16, codes, numbers), UsageError);
  EXPECT_THROW(encode_small_floats(Dtype::f16, numbers, codes), UsageError);
  EXPECT_THROW(static_cast<void>(decode_small_float(Dtype::f32, 0)), UsageError);
  EXPECT_THROW(static_cast<void>(encode_small_float(Dtype::i8, 1.0F)), UsageError);
  EXPECT_FALSE(is_small_float(Dtype::f32));
  EXPECT_TRUE(is_small_float(Dtype::f4));
}

}  // namespace
}  // namespace crossrank
