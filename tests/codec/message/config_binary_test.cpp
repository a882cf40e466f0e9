#include "lib/codec/message/config_binary.hpp"

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/codec/json/config_json.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec::config_binary_test {
namespace {

using testing::HasSubstr;

std::span<std::byte const> bytes_of(std::string const& text) { return std::as_bytes(std::span(text)); }
Json round_trip(Json const& config) { return decode_config_binary(bytes_of(encode_config_binary(config))); }

/// Returns values at the limits of their kinds, and objects and arrays of them.
Json random_config(std::mt19937_64& random, int depth) {
  auto const number = [&](std::uint64_t below) { return random() % below; };
  switch (number(depth > 0 ? 10 : 8)) {
    case 0: return nullptr;
    case 1: return number(2) == 1;
    case 2: return static_cast<std::int64_t>(random() >> number(64)) * (number(2) == 1 ? 1 : -1);
    case 3: return random() >> number(64);
    case 4: return std::bit_cast<double>(random());
    case 5: return std::string(number(40), static_cast<char>('a' + number(26)));
    case 6: return std::string("\u00e9\u4e16\U0001f600\0x", 11);
    case 7: {
      Json::binary_t::container_type held(number(20), static_cast<std::uint8_t>(number(256)));
      return number(2) == 1 ? Json::binary(held) : Json::binary(held, number(1000));
    }
    case 8: {
      Json array = Json::array();
      for (auto i = number(12); i > 0; --i) array.push_back(random_config(random, depth - 1));
      return array;
    }
    default: {
      Json object = Json::object();
      for (auto i = number(30); i > 0; --i)
        object["key " + std::to_string(random())] = random_config(random, depth - 1);
      return object;
    }
  }
}

TEST(ConfigBinary, keeps_every_value_with_its_type_and_order) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    auto const config = random_config(random, 4);
    auto const bytes = encode_config_binary(config);
    auto const back = decode_config_binary(bytes_of(bytes));
    ASSERT_EQ(encode_config_binary(back), bytes);  // compare bytes, because NaN is not equal to itself
    ASSERT_EQ(encode_config(back), encode_config(config));
  }
}

TEST(ConfigBinary, keeps_the_kind_of_each_number) {
  EXPECT_EQ(round_trip(std::int64_t{5}).type(), Json::value_t::number_integer);
  EXPECT_EQ(round_trip(std::uint64_t{5}).type(), Json::value_t::number_unsigned);
  EXPECT_EQ(round_trip(5.0).type(), Json::value_t::number_float);
  EXPECT_EQ(round_trip(std::numeric_limits<std::uint64_t>::max()), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(round_trip(std::numeric_limits<std::int64_t>::min()), std::numeric_limits<std::int64_t>::min());
}

TEST(ConfigBinary, refuses_every_truncation) {
  Json const config = {{"name", "layer"}, {"shape", {1, 2.5, -3}}, {"flag", true}, {"raw", Json::binary({1, 2}, 7)}};
  auto const whole = encode_config_binary(config);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW((void)decode_config_binary(bytes_of(whole).first(size)), FormatError) << size;
  }
  EXPECT_THROW((void)decode_config_binary(bytes_of(whole + '\0')), FormatError);
}

TEST(ConfigBinary, survives_every_changed_byte) {
  Json const config = {{"name", "layer"}, {"shape", {1, 2.5, -3}}, {"deep", {{{{"a", nullptr}}}}}};
  auto const whole = encode_config_binary(config);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      auto changed = whole;
      changed[at] = static_cast<char>(value);
      try {
        // Each config has exactly one encoding, so encoding the result gives the same bytes.
        ASSERT_EQ(encode_config_binary(decode_config_binary(bytes_of(changed))), changed);
      } catch (FormatError const& e) {
        EXPECT_EQ(e.section(), "config");
        EXPECT_LE(e.offset(), whole.size());
      }
    }
  }
}

struct Malformed {
  char const* name;
  std::string bytes;
  char const* message;
};

class MalformedTree : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedTree, is_refused) {
  try {
    (void)decode_config_binary(bytes_of(GetParam().bytes));
    ADD_FAILURE() << "was accepted";
  } catch (FormatError const& e) {
    EXPECT_THAT(e.info().message, HasSubstr(GetParam().message));
  }
}

std::string nested(std::size_t depth) {
  std::string bytes;
  for (std::size_t i = 0; i < depth; ++i) bytes += "\x07\x01";
  return bytes + std::string(1, '\0');
}

std::string many_keys(bool repeated) {
  std::string bytes("\x08\x14", 2);
  for (int i = 0; i < 20; ++i)
    bytes += "\x01" + std::string(1, static_cast<char>('a' + (repeated && i == 19 ? 3 : i))) + std::string(1, '\0');
  return bytes;
}

INSTANTIATE_TEST_SUITE_P(
    With, MalformedTree,
    testing::Values(Malformed{"an_unknown_tag", "\x0b", "unknown kind"},
                    Malformed{"a_count_beyond_the_bytes", "\x07\xff\xff\xff\xff\x0f", "more items are announced"},
                    Malformed{"a_length_beyond_the_bytes",
                              "\x06\x05"
                              "abc",
                              "more items are announced"},
                    Malformed{"a_number_beyond_64_bits", "\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "malformed"},
                    Malformed{"a_number_longer_than_needed", std::string("\x04\x80\x00", 3), "malformed"},
                    Malformed{"text_that_is_not_utf8", "\x06\x02\xc3\x28", "not UTF-8"},
                    Malformed{"a_key_twice",
                              std::string("\x08\x02\x01"
                                          "a\x00\x01"
                                          "a\x00",
                                          8),
                              "repeats a key"},
                    Malformed{"a_key_twice_among_many", many_keys(true), "repeats a key"},
                    Malformed{"too_much_depth", nested(max_config_depth + 1), "too deep"}),
    [](auto const& one) { return std::string(one.param.name); });

TEST(ConfigBinary, accepts_many_keys_and_the_greatest_depth) {
  EXPECT_EQ(decode_config_binary(bytes_of(many_keys(false))).size(), 20U);
  EXPECT_NO_THROW((void)decode_config_binary(bytes_of(nested(max_config_depth))));
}

TEST(ConfigBinary, refuses_to_write_values_that_no_reader_accepts) {
  EXPECT_THROW((void)encode_config_binary("\xc3\x28"), UsageError);
  EXPECT_THROW((void)encode_config_binary(std::string(max_config_bytes, 'x')), UsageError);
  Json deep = 1;
  for (std::size_t i = 0; i <= max_config_depth; ++i) deep = Json::array({deep});
  EXPECT_THROW((void)encode_config_binary(deep), UsageError);
}

}  // namespace
}  // namespace crossrank::codec::config_binary_test
