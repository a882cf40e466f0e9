#include <crossrank/tensor/dtype.hpp>

#include <cstdint>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank {
namespace {

TEST(Dtype, names_parse_back_and_differ) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < dtype_count; ++i) {
    auto const dtype = static_cast<Dtype>(i);
    names.insert(name_of(dtype));
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(names.size(), 22U);
  EXPECT_FALSE(parse_dtype("f32").has_value());
  EXPECT_FALSE(parse_dtype("").has_value());
}

TEST(Dtype, has_the_sizes_of_the_format) {
  EXPECT_EQ(bits_of(Dtype::f4), 4U);
  EXPECT_EQ(bits_of(Dtype::f6_e2m3), 6U);
  EXPECT_EQ(bits_of(Dtype::f6_e3m2), 6U);
  EXPECT_EQ(bits_of(Dtype::boolean), 8U);
  EXPECT_EQ(bits_of(Dtype::f8_e5m2fnuz), 8U);
  EXPECT_EQ(bits_of(Dtype::bf16), 16U);
  EXPECT_EQ(bits_of(Dtype::f32), 32U);
  EXPECT_EQ(bits_of(Dtype::c64), 64U);
  EXPECT_EQ(bits_of(Dtype::u64), 64U);
}

TEST(Dtype, refuses_an_unknown_value) {
  EXPECT_THROW((void)bits_of(static_cast<Dtype>(22)), UsageError);
  EXPECT_THROW((void)name_of(static_cast<Dtype>(255)), UsageError);
}

TEST(Dtype, follows_the_element_type) {
  static_assert(dtype_of<bool> == Dtype::boolean);
  static_assert(dtype_of<float> == Dtype::f32);
  static_assert(dtype_of<std::complex<float>> == Dtype::c64);
  static_assert(dtype_of<std::int64_t> == Dtype::i64);
  static_assert(dtype_of<long long> == Dtype::i64);
  static_assert(dtype_of<std::uint16_t> == Dtype::u16);
  static_assert(!Element<char> && !Element<long double> && !Element<std::byte> && !Element<float const>);
  SUCCEED();
}

}  // namespace
}  // namespace crossrank
