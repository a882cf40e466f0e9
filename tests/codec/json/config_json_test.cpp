#include "lib/codec/json/config_json.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {
namespace {

Json round_trip(Json const& config) { return decode_config(encode_config(config)); }

void expect_same(Json const& config) {
  auto const back = round_trip(config);
  EXPECT_EQ(back, config) << encode_config(config);
  EXPECT_EQ(back.type_name(), std::string(config.type_name()));
}

TEST(ConfigJson, keeps_plain_values) {
  for (auto const& config : {Json(nullptr), Json(true), Json("text"), Json::array(), Json::object(), Json(1.5),
                             Json(-0.0), Json(1e300), Json(5e-324), Json(0.1), Json(100.0)}) {
    expect_same(config);
  }
}

TEST(ConfigJson, keeps_the_order_of_keys) {
  Json config = Json::object();
  for (auto const* key : {"z", "a", "m", ""}) config[key] = key;
  EXPECT_EQ(encode_config(round_trip(config)), R"({"z":"z","a":"a","m":"m","":""})");
}

TEST(ConfigJson, distinguishes_64_bit_integers_from_doubles) {
  for (auto const value : {INT64_MIN, INT64_MAX, std::int64_t{-1}, (std::int64_t{1} << 53) + 1}) {
    EXPECT_EQ(round_trip(value).get<std::int64_t>(), value);
  }
  EXPECT_EQ(round_trip(UINT64_MAX).get<std::uint64_t>(), UINT64_MAX);
  EXPECT_TRUE(round_trip(3.0).is_number_float());
  EXPECT_TRUE(round_trip(3).is_number_integer());
}

TEST(ConfigJson, keeps_the_bits_of_doubles_that_are_not_json_numbers) {
  auto const bits_back = [](std::uint64_t bits) {
    return std::bit_cast<std::uint64_t>(round_trip(Json(std::bit_cast<double>(bits))).get<double>());
  };
  for (std::uint64_t const bits : {0x7ff0000000000000ULL, 0xfff0000000000000ULL, 0x7ff8000000000000ULL,
                                   0xfff8000000000000ULL, 0x7ff800000000beefULL, 0x8000000000000000ULL}) {
    EXPECT_EQ(bits_back(bits), bits) << std::hex << bits;
  }
}

TEST(ConfigJson, keeps_binary_values_of_every_length_and_their_subtype) {
  for (std::size_t size = 0; size < 8; ++size) {
    std::vector<std::uint8_t> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(255 - 37 * i);
    expect_same(Json::binary(bytes));
    expect_same(Json::binary(bytes, 128));
  }
}

TEST(ConfigJson, keeps_unicode_control_characters_and_nul_in_strings) {
  expect_same(Json(std::string("na\u00efve \u65e5\u672c \U0001f600 \"\\/\b\f\n\r\t\x01\x7f") + std::string(1, '\0')));
}

TEST(ConfigJson, keeps_values_of_the_user_that_look_like_its_tags) {
  for (auto const* text :
       {R"({"$float":"inf"})", R"({"$$float":"nan"})", R"({"$binary":"AA=="})", R"({"$$$binary":[1]})",
        R"({"$float":1,"x":2})", R"({"$":1})", R"({"$tensor":"w"})", R"([{"$float":{"$float":"inf"}}])"}) {
    expect_same(Json::parse(text));
  }
  Json nested = Json::object();
  nested["$float"] = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isinf(round_trip(nested).at("$float").get<double>()));
}

TEST(ConfigJson, refuses_to_write_values_that_json_cannot_hold) {
  EXPECT_THROW((void)encode_config(Json("\xff")), UsageError);
  EXPECT_THROW((void)encode_config(Json{{"\xed\xa0\x80", 1}}), UsageError);
  EXPECT_THROW((void)encode_config(Json(Json::value_t::discarded)), UsageError);
}

Json nested(std::size_t depth, Json inner) {
  for (std::size_t i = 0; i < depth; ++i) inner = Json::array({std::move(inner)});
  return inner;
}

TEST(ConfigJson, reads_every_depth_that_it_writes) {
  expect_same(nested(max_config_depth, 1));
  EXPECT_THROW((void)encode_config(nested(max_config_depth + 1, 1)), UsageError);
  for (auto const& leaf : {Json(std::numeric_limits<double>::infinity()), Json::binary({1}), Json::binary({1}, 2)}) {
    int encoded = 0;
    for (auto depth = max_config_depth - 3; depth <= max_config_depth; ++depth) {
      std::string text;
      try {
        text = encode_config(nested(depth, leaf));
      } catch (UsageError const&) {
        continue;
      }
      ++encoded;
      EXPECT_NO_THROW((void)decode_config(text)) << depth;
    }
    EXPECT_GT(encoded, 0) << leaf;
  }
}

TEST(ConfigJson, refuses_too_many_values) {
  EXPECT_THROW((void)encode_config(Json(std::vector<int>(max_config_nodes, 1))), UsageError);
  std::string text = "[1";
  for (std::size_t i = 1; i < max_config_nodes; ++i) text += ",1";
  EXPECT_THROW((void)decode_config(text + "]"), FormatError);
}

struct BadConfig {
  char const* name;
  std::string text;
};

void PrintTo(BadConfig const& bad, std::ostream* out) { *out << bad.name; }

class BadConfigText : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigText, is_refused) {
  try {
    (void)decode_config(GetParam().text);
    FAIL() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), "config");
    EXPECT_LE(e.offset(), GetParam().text.size() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    ConfigJson, BadConfigText,
    testing::Values(BadConfig{"empty", ""}, BadConfig{"open", "{"}, BadConfig{"bare_infinity", "-Infinity"},
                    BadConfig{"bare_nan", "NaN"}, BadConfig{"comment", "1//"}, BadConfig{"two_values", "1 2"},
                    BadConfig{"byte_order_mark", "\xef\xbb\xbf{}"}, BadConfig{"nul_behind", std::string("1\0", 2)},
                    BadConfig{"repeated_key", R"({"a":1,"a":2})"},
                    BadConfig{"integer_beyond_64_bits", "18446744073709551616"},
                    BadConfig{"number_beyond_doubles", "1e999"}, BadConfig{"not_utf8", "\"\xff\""},
                    BadConfig{"deep", std::string(40, '[') + std::string(40, ']')},
                    BadConfig{"float_mark_of_a_plain_number", R"({"$float":"0x3ff0000000000000"})"},
                    BadConfig{"float_mark_of_a_number", R"({"$float":1})"},
                    BadConfig{"binary_mark_not_base64", R"({"$binary":"A"})"},
                    BadConfig{"binary_mark_with_stray_bits", R"({"$binary":"AB=="})"},
                    BadConfig{"binary_mark_padding_inside", R"({"$binary":"AA==AAAA"})"},
                    BadConfig{"binary_mark_bad_subtype", R"({"$binary":["AA==",-1]})"}),
    [](auto const& test) { return test.param.name; });

}  // namespace
}  // namespace crossrank::codec
