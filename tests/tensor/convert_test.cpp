#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/tensor.hpp>

#include "lib/tensor/small_float.hpp"
#include "tests/support/error_of.hpp"

/// Conversions of dtypes on the CPU.
namespace crossrank {
namespace convert_test {
namespace {

using test::thrown;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::vector<T> converted(Tensor const& tensor) {
  Tensor const result = tensor.to(dtype_of<T>);
  auto const all = result.as<T>();
  return {all.begin(), all.end()};
}

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(Convert, is_the_same_view_when_the_dtype_is_the_same) {
  auto const tensor = Tensor::of<float>({1, 2}, {2});
  EXPECT_EQ(tensor.to(Dtype::f32).data(), tensor.data());
  EXPECT_FALSE(Tensor{}.to(Dtype::f32).defined());
}

TEST(Convert, keeps_the_shape_and_makes_memory_of_its_own) {
  auto const tensor = Tensor::of<float>({1, 2, 3, 4}, {2, 2});
  auto result = tensor.to(Dtype::f64);
  EXPECT_EQ(result.shape(), (Shape{2, 2}));
  result.as_mutable<double>()[0] = 9;
  EXPECT_EQ(tensor.as<float>()[0], 1);
}

TEST(Convert, drops_the_fraction_and_stays_within_the_integers) {
  auto const reals = Tensor::of<double>({1.9, -1.9, 300, -300, infinity, -infinity, nan, 0x1p63}, {8});
  EXPECT_THAT(converted<std::int8_t>(reals), ElementsAre(1, -1, 127, -128, 127, -128, 0, 127));
  EXPECT_THAT(converted<std::uint8_t>(reals), ElementsAre(1, 0, 255, 0, 255, 0, 0, 255));
  EXPECT_THAT(converted<std::int64_t>(reals), ElementsAre(1, -1, 300, -300, INT64_MAX, INT64_MIN, 0, INT64_MAX));
  EXPECT_THAT(converted<std::uint64_t>(reals), ElementsAre(1, 0, 300, 0, UINT64_MAX, 0, 0, std::uint64_t{1} << 63U));
}

TEST(Convert, wraps_integers_around_and_rounds_them_to_floats) {
  EXPECT_THAT(converted<std::uint8_t>(Tensor::of<std::int64_t>({-1, 256, 257}, {3})), ElementsAre(255, 0, 1));
  EXPECT_THAT(converted<std::int32_t>(Tensor::of<std::uint64_t>({UINT64_MAX}, {1})), ElementsAre(-1));
  // 2^24 + 1 has no float; of the two neighbours, the even one.
  EXPECT_THAT(converted<float>(Tensor::of<std::int64_t>({(1 << 24) + 1}, {1})), ElementsAre(0x1p24F));
  // Rounded twice, by way of double, this would become 2^63.
  EXPECT_THAT(converted<float>(Tensor::of<std::uint64_t>({(std::uint64_t{1} << 63U) + (1ULL << 39U) + 1}, {1})),
              ElementsAre(0x1.000002p63F));
}

TEST(Convert, makes_all_numbers_but_zero_true) {
  EXPECT_THAT(converted<bool>(Tensor::of<double>({0, -0.0, 0.5, nan}, {4})), ElementsAre(false, false, true, true));
  EXPECT_THAT(converted<bool>(Tensor::of<std::int16_t>({0, -256}, {2})), ElementsAre(false, true));
  EXPECT_THAT(converted<float>(Tensor::of<bool>({true, false}, {2})), ElementsAre(1, 0));
}

TEST(Convert, keeps_the_payload_of_a_nan_and_makes_it_quiet) {
  auto const signaling = Tensor::of<std::uint32_t>({0xff80'2000U}, {1});
  auto const tensor = Tensor::from_blob(signaling.data(), {1}, Dtype::f32);
  auto const wide = tensor.to(Dtype::f64);
  std::uint64_t bits = 0;
  std::memcpy(&bits, wide.bytes().data(), sizeof bits);
  EXPECT_EQ(bits, 0xfff8'0400'0000'0000U);
  std::uint32_t narrow = 0;
  std::memcpy(&narrow, wide.to(Dtype::f32).bytes().data(), sizeof narrow);
  EXPECT_EQ(narrow, 0xffc0'2000U);
}

TEST(Convert, refuses_packed_formats_and_complex_numbers) {
  auto const f4 = Tensor::empty({4}, Dtype::f4);
  EXPECT_EQ(thrown<UsageError>([&] { static_cast<void>(f4.to(Dtype::f32)); }).info().got, "F4");
  auto const f32 = Tensor::empty({4}, Dtype::f32);
  EXPECT_THAT(thrown<UsageError>([&] { static_cast<void>(f32.to(Dtype::c64)); }).info().expected, HasSubstr("C64"));
}

TEST(Convert, reads_elements_without_alignment) {
  std::vector<std::byte> bytes(9);
  double const value = 2.5;
  std::memcpy(bytes.data() + 1, &value, sizeof value);
  EXPECT_THAT(converted<float>(Tensor::from_blob(bytes.data() + 1, {1}, Dtype::f64)), ElementsAre(2.5F));
}

/// The small formats, longer than a chunk, against the codecs, which are tested by themselves.
class ConvertSmallFloat : public testing::TestWithParam<Dtype> {};

TEST_P(ConvertSmallFloat, has_the_numbers_and_codes_of_the_format) {
  auto const dtype = GetParam();
  auto const bytes = bits_of(dtype) / 8;
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 100);
  std::vector<double> reals{0, -0.0, infinity, -infinity, nan, 1e30, -1e30, 1e-30};
  while (reals.size() < 3'000) reals.push_back(normal(random) * std::pow(2.0, static_cast<int>(random() % 40) - 20));
  auto const size = static_cast<std::int64_t>(reals.size());
  auto const small = Tensor::of(reals, {size}).to(dtype);
  auto const back = small.to(Dtype::f32);
  for (std::size_t i = 0; i < reals.size(); ++i) {
    std::uint16_t code = 0;
    std::memcpy(&code, small.bytes().data() + i * bytes, bytes);
    EXPECT_EQ(code, encode_small_float(dtype, static_cast<float>(reals[i]))) << reals[i];
    auto const number = decode_small_float(dtype, code);
    auto const got = back.as<float>()[i];
    EXPECT_TRUE(got == number || (std::isnan(got) && std::isnan(number))) << reals[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ConvertSmallFloat,
                         testing::Values(Dtype::f16, Dtype::bf16, Dtype::f8_e5m2, Dtype::f8_e4m3, Dtype::f8_e8m0,
                                         Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz),
                         [](auto const& one) { return std::string(name_of(one.param)); });

}  // namespace
}  // namespace convert_test
}  // namespace crossrank
