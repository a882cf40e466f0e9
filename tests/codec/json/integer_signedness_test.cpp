#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "lib/codec/json/config_json.hpp"
#include "lib/codec/json/integer_signedness.hpp"

namespace crossrank::codec {
namespace {

Json through_text(Json const& config) {
  auto read = decode_config(encode_config(config));
  auto const kinds = encode_integer_signedness(config);
  EXPECT_TRUE(kinds.empty() || restore_integer_signedness(kinds, read)) << config;
  return read;
}

TEST(IntegerSignedness, round_trips_through_text) {
  EXPECT_EQ(through_text(5).type(), Json::value_t::number_integer);
  EXPECT_EQ(through_text(5U).type(), Json::value_t::number_unsigned);
  EXPECT_EQ(through_text(-5).type(), Json::value_t::number_integer);
  Json const config{{"a", 1}, {"b", {2U, -3, 4.0, 5, "6"}}, {"c", {{"d", 7}, {"e", ~std::uint64_t{0}}}}};
  EXPECT_EQ(encode_integer_signedness(config), "0,1,1,2,1");
  auto const read = through_text(config);
  EXPECT_EQ(read, config);
  EXPECT_TRUE(read["b"][0].is_number_unsigned());
  EXPECT_FALSE(read["b"][3].is_number_unsigned());
  EXPECT_FALSE(read["c"]["d"].is_number_unsigned());
  EXPECT_TRUE(read["c"]["e"].is_number_unsigned());
}

TEST(IntegerSignedness, is_empty_when_all_are_unsigned) {
  EXPECT_EQ(encode_integer_signedness(Json::parse(R"({"a": 1, "b": [2, -3, 0.5]})")), "");
  EXPECT_EQ(encode_integer_signedness(nullptr), "");
}

TEST(IntegerSignedness, is_refused_unless_it_matches_the_config) {
  Json const config = Json::parse("[1, 2, 18446744073709551615]");
  for (std::string const runs :
       {"", ",", "3", "3,0", "0,2,1,", "0,2,2", "0,2", "0,3", "a", "0,x", "0,2,1,1", "-1,4", "0,2,1 ", "0;2;1"}) {
    auto read = config;
    EXPECT_EQ(restore_integer_signedness(runs, read), runs == "3") << runs;
  }
  auto read = config;
  EXPECT_TRUE(restore_integer_signedness("0,2,1", read));
}

}  // namespace
}  // namespace crossrank::codec
