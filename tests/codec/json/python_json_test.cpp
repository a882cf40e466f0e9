// JSON with the numbers that Python writes.
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/json/python_json.hpp"

namespace crossrank::codec {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(PythonJson, has_numbers_that_are_not_finite) {
  auto const value = parse_python_json(R"({"limit": [0.0, Infinity], "low": -Infinity, "no": NaN})", {});
  EXPECT_EQ(value.at("limit"), (Json{0.0, infinity}));
  EXPECT_EQ(value.at("low"), Json(-infinity));
  EXPECT_TRUE(std::isnan(value.at("no").get<double>()));
}

TEST(PythonJson, leaves_the_same_words_in_strings) {
  auto const* const text = R"({"NaN": "Infinity", "a\"NaN": "\\", "b": [NaN, "-Infinity \" NaN"]})";
  auto const value = parse_python_json(text, {});
  EXPECT_EQ(value.at("NaN"), "Infinity");
  EXPECT_EQ(value.at("a\"NaN"), "\\");
  EXPECT_EQ(value.at("b").at(1), "-Infinity \" NaN");
}

TEST(PythonJson, is_written_as_it_was_read) {
  auto const value = parse_python_json(R"({"limit": [0.5, Infinity, -Infinity, "Infinity"], "name": "x"})", {});
  auto const text = to_python_json(value);
  EXPECT_NE(text.find("\n    Infinity,\n    -Infinity,\n    \"Infinity\"\n"), std::string::npos) << text;
  EXPECT_EQ(parse_python_json(text, {}), value);
  EXPECT_EQ(to_python_json(Json{{"a", 1}}), Json({{"a", 1}}).dump(2));
}

/// Between Python's text and JSON, a number is a string with a mark before its name.
TEST(PythonJson, leaves_texts_that_look_like_marked_numbers) {
  auto const value = parse_python_json("{\"a\": NaN, \"b\": \"\\u0001NaN\", \"\\u0001\\u0001NaN\": 1}", {});
  EXPECT_TRUE(value.at("a").is_number());
  EXPECT_EQ(value.at("b"), "\x01NaN");
  EXPECT_TRUE(value.contains("\x01\x01NaN"));
  Json const written{{"\x01NaN", "\x01Infinity"}, {"limit", infinity}};
  EXPECT_EQ(parse_python_json(to_python_json(written), {}), written);
}

/// The marks would make such a text as long as the product of both lengths.
TEST(PythonJson, refuses_numbers_beside_long_runs_of_marks) {
  std::string run;
  for (int i = 0; i < 1000; ++i) run += "\\u0001";
  EXPECT_THROW(static_cast<void>(parse_python_json("[\"" + run + "\", NaN]", {})), FormatError);
  EXPECT_EQ(parse_python_json("[\"" + run + "\", 1]", {}).at(1), 1);
}

TEST(PythonJson, is_written_with_empty_values) {
  for (auto const& value :
       {Json::object(), Json::array(), Json(nullptr), Json{{"a", Json::array()}, {"b", {{"c", {}}}}}})
    EXPECT_EQ(to_python_json(value), value.dump(2));
}

TEST(PythonJson, refuses_what_python_does_not_write) {
  for (auto const* text : {"Inf", "nan", "+Infinity", "InfinityInfinity", "[NaN", "{NaN: 1}", "1NaN"})
    EXPECT_THROW(static_cast<void>(parse_python_json(text, {})), FormatError) << text;
}

}  // namespace
}  // namespace crossrank::codec
