#include "lib/codec/json/json_document.hpp"

#include <string>

#include <gtest/gtest.h>

namespace crossrank::codec {
namespace {

JsonDocumentOptions strict() {
  return {.limits = {.bytes = 100, .values = 10, .depth = 3},
          .repeated_key = RepeatedKey::refuse,
          .about = {.operation = "test", .resource = "some.json", .hint = "write it anew", .section = "json"}};
}

std::string refusal(std::string const& text, JsonDocumentOptions const& options = strict()) {
  try {
    (void)parse_json(text, options);
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().resource, "some.json");
    EXPECT_EQ(error.info().hint, "write it anew");
    EXPECT_EQ(error.section(), "json");
    EXPECT_LE(error.offset(), text.size() + 1);
    return error.info().message;
  }
  return "accepted";
}

TEST(JsonDocument, keeps_the_order_of_keys_and_all_kinds_of_values) {
  std::string const text = R"({"z":1,"a":[true,null,"x",-2,0.5],"m":{"b":{},"a":[]}})";
  EXPECT_EQ(parse_json(text, {}).dump(), text);
}

/// A program may call setlocale(LC_ALL, ""). The parser then gives numbers with the decimal point of that locale.
TEST(JsonDocument, knows_fractions_from_integers_in_any_locale) {
  class Noticing final : public JsonBuilder {
   public:
    using JsonBuilder::JsonBuilder;
    int long_integers = 0;

   private:
    void take_long_integer(double, std::string const&) override { ++long_integers; }
  };
  ErrorInfo const about;
  Noticing builder(strict().limits, RepeatedKey::refuse, about);
  EXPECT_TRUE(builder.start_array(4));
  for (auto const* const digits : {"0,5", "-0.5", "1e9"}) EXPECT_TRUE(builder.number_float(1, digits));
  EXPECT_EQ(builder.long_integers, 0);
  EXPECT_TRUE(builder.number_float(-1e30, "-1000000000000000000000000000000"));
  EXPECT_EQ(builder.long_integers, 1);
}

TEST(JsonDocument, keeps_the_last_value_of_a_repeated_key_at_the_position_of_the_first) {
  EXPECT_EQ(parse_json(R"({"a":1,"b":2,"a":3})", {}).dump(), R"({"a":3,"b":2})");
  std::string text = "{";
  for (int i = 0; i < 40; ++i) text += "\"k" + std::to_string(i % 20) + "\":" + std::to_string(i) + ",";
  auto const many = parse_json(text + "\"end\":0}", {});
  ASSERT_EQ(many.size(), 21U);
  EXPECT_EQ(many.begin().key(), "k0");
  EXPECT_EQ(many.at("k0"), 20);
  EXPECT_EQ(many.at("k19"), 39);
}

TEST(JsonDocument, refuses_a_repeated_key_on_request) {
  EXPECT_NE(refusal(R"({"a":1,"b":2,"a":3})").find("repeats the key \"a\""), std::string::npos);
  EXPECT_NE(refusal(R"({"x":{"a":1,"a":3}})").find("repeats the key \"a\""), std::string::npos);
  EXPECT_EQ(refusal(R"([{"a":1},{"a":3}])"), "accepted");
}

TEST(JsonDocument, refuses_documents_beyond_a_limit) {
  EXPECT_EQ(refusal("[[[0]]]"), "accepted");
  EXPECT_NE(refusal("[[[[0]]]]").find("nesting"), std::string::npos);
  EXPECT_EQ(refusal("[1,2,3,4,5,6,7,8,9]"), "accepted");
  EXPECT_NE(refusal("[1,2,3,4,5,6,7,8,9,10]").find("too many values"), std::string::npos);
  EXPECT_EQ(refusal("\"" + std::string(98, 'x') + "\""), "accepted");
  EXPECT_NE(refusal("\"" + std::string(99, 'x') + "\"").find("101 bytes"), std::string::npos);
}

TEST(JsonDocument, refuses_integers_that_would_lose_digits) {
  EXPECT_EQ(parse_json("[18446744073709551615,-9223372036854775808,1e30]", {}).dump(),
            "[18446744073709551615,-9223372036854775808,1e+30]");
  // As Python writes int(1e30): the double has the same value.
  EXPECT_EQ(parse_json("[1000000000000000019884624838656,-18446744073709551616]", {}),
            Json::array({1e30, -18446744073709551616.0}));
  for (auto const* integer : {"18446744073709551617", "-9223372036854775809", "123456789012345678901234567890"})
    EXPECT_NE(refusal("{\"a\":" + std::string(integer) + "}").find("64 bits"), std::string::npos) << integer;
}

TEST(JsonDocument, refuses_malformed_json) {
  for (std::string const text : {"", "{", "[1,]", "{}x", "{\"a\" 1}", "NaN", "\"\xff\"", "1e999"})
    EXPECT_EQ(refusal(text), "malformed JSON") << text;
  EXPECT_NE(refusal(std::string("{}\0{", 4)).find("NUL"), std::string::npos);
  EXPECT_NE(refusal("\xef\xbb\xbf{}").find("byte order mark"), std::string::npos);
}

}  // namespace
}  // namespace crossrank::codec
