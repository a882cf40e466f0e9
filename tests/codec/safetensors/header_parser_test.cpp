#include "lib/codec/safetensors/header_parser.hpp"

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {
namespace {

constexpr char one_byte[] = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";

struct BadCase {
  char const* name;
  char const* section;
  std::string header;
  std::string data{};
};

void PrintTo(BadCase const& bad, std::ostream* out) { *out << bad.name; }

std::string entry(std::string const& dtype, std::string const& shape, std::string const& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::vector<BadCase> bad_cases() {
  std::string const bytes16(16, 'x');
  return {
      {"empty_header", "header", ""},
      {"not_json", "header", "{"},
      {"high_byte", "header", "\xff"},
      {"array", "header", "[]"},
      {"number", "header", "3"},
      {"comment", "header", "{}//x"},
      {"text_behind", "header", "{}x"},
      {"second_object", "header", "{}{}"},
      {"nul_behind", "header", std::string("{}\0", 3)},
      {"byte_order_mark", "header", "\xef\xbb\xbf{}"},
      {"nan_length", "header", entry("U8", "[NaN]", "[0,1]"), "x"},
      {"lone_surrogate", "header", R"({"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"},
      {"encoded_surrogate", "header", "{\"\xed\xa0\x80\":{}}"},
      {"overlong_utf8", "header", "{\"\xc0\x80\":{}}"},
      {"deep_nesting", "header", R"({"a":)" + std::string(200, '[')},
      {"negative_length", "header", entry("U8", "[-1]", "[0,1]"), "x"},
      {"minus_zero", "header", entry("U8", "[-0]", "[0,0]")},
      {"float_length", "header", entry("U8", "[1.0]", "[0,1]"), "x"},
      {"exponent_length", "header", entry("U8", "[1e0]", "[0,1]"), "x"},
      {"length_beyond_63_bits", "header", entry("U8", "[9223372036854775808]", "[0,1]"), "x"},
      {"offset_beyond_64_bits", "header", entry("U8", "[1]", "[0,18446744073709551616]"), "x"},
      {"offset_beyond_doubles", "header", entry("U8", "[1]", "[0,9007199254740993]"), "x"},
      {"one_offset", "header", entry("U8", "[1]", "[0]"), "x"},
      {"three_offsets", "header", entry("U8", "[1]", "[0,1,1]"), "x"},
      {"offsets_as_object", "header", entry("U8", "[1]", "{}"), "x"},
      {"unknown_dtype", "header", entry("Q8", "[1]", "[0,1]"), "x"},
      {"lower_case_dtype", "header", entry("u8", "[1]", "[0,1]"), "x"},
      {"dtype_number", "header", R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "x"},
      {"missing_dtype", "header", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", "x"},
      {"missing_shape", "header", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "x"},
      {"missing_offsets", "header", R"({"a":{"dtype":"U8","shape":[1]}})", "x"},
      {"repeated_key", "header", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"},
      {"unknown_key", "header", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":[{}]}})", "x"},
      {"entry_as_array", "header", R"({"a":["U8",[1],[0,1]]})", "x"},
      {"entry_null", "header", R"({"a":null})"},
      {"repeated_name", "header",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "xy"},
      {"name_with_nul", "header", R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"},
      {"name_too_long", "header",
       "{\"" + std::string(1025, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"},
      {"metadata_null", "header", R"({"__metadata__":null})"},
      {"metadata_list", "header", R"({"__metadata__":[]})"},
      {"metadata_number", "header", R"({"__metadata__":{"a":1}})"},
      {"metadata_nested", "header", R"({"__metadata__":{"a":{}}})"},
      {"metadata_twice", "header", R"({"__metadata__":{},"__metadata__":{}})"},
      {"metadata_repeats_key", "header", R"({"__metadata__":{"a":"1","a":"2"}})"},
      {"too_many_dimensions", "header", entry("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), "x"},
      {"begin_not_zero", "header", entry("U8", "[1]", "[1,2]"), "xy"},
      {"end_before_begin", "header", entry("U8", "[1]", "[1,0]"), "x"},
      {"hole", "header",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       "xyz"},
      {"overlap", "header",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "xyz"},
      {"same_range_twice", "header",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       "xy"},
      {"zero_size_inside_another", "header",
       R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[1,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       "xy"},
      {"shape_larger_than_range", "header", entry("I32", "[2,2]", "[0,4]"), "xxxx"},
      {"shape_overflows", "header", entry("I32", "[2,9223372036854775807]", "[0,16]"), bytes16},
      {"shape_wraps_to_its_range", "header", entry("I32", "[4611686018427387905,4]", "[0,16]"), bytes16},
      {"shape_overflows_before_zero", "header", entry("I32", "[9223372036854775807,4,0]", "[0,0]")},
      {"shape_overflows_its_sign_before_zero", "header", entry("I32", "[2,4611686018427387904,0]", "[0,0]")},
      {"f4_ends_inside_a_byte", "header", entry("F4", "[1,3]", "[0,2]"), "xx"},
      {"f6_ends_inside_a_byte", "header", entry("F6_E2M3", "[3]", "[0,3]"), "xxx"},
      {"bytes_behind", "data", one_byte, "xy"},
      {"bytes_missing", "data", one_byte, ""},
      {"data_without_tensors", "data", "{}", "x"},
  };
}

class BadHeader : public testing::TestWithParam<BadCase> {};

TEST_P(BadHeader, is_refused_with_its_section_and_a_byte_of_the_file) {
  auto const& bad = GetParam();
  auto const bytes = file_of(bad.header, bad.data);
  try {
    (void)open_plain(bytes);
    FAIL() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), bad.section);
    EXPECT_GE(e.offset(), 8U);
    EXPECT_LE(e.offset(), bytes.size() + 1);
    EXPECT_EQ(e.info().resource, "test bytes");
    EXPECT_NO_THROW((void)e.to_json().dump());
  }
}

INSTANTIATE_TEST_SUITE_P(HeaderParser, BadHeader, testing::ValuesIn(bad_cases()),
                         [](auto const& test) { return test.param.name; });

void expect_bad_length(Bytes bytes) {
  try {
    (void)open_plain(std::move(bytes));
    FAIL() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), "length");
  }
}

TEST(HeaderParser, refuses_a_file_shorter_than_the_length_field) {
  for (std::size_t size = 0; size < 8; ++size) expect_bad_length(Bytes(size));
}

TEST(HeaderParser, refuses_a_length_past_the_end) { expect_bad_length(to_bytes(std::string("\x3c\0\0\0\0\0\0\0", 8))); }

TEST(HeaderParser, refuses_a_length_whose_sum_wraps) {
  expect_bad_length(to_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}"));
}

TEST(HeaderParser, refuses_a_header_over_the_callers_limit) {
  auto const bytes = file_of(one_byte, "x");
  auto const source = std::make_shared<BytesSource>(bytes);
  EXPECT_THROW((void)StateImage::open(source, {.kind = ImageKind::plain, .header_limit = 16}), FormatError);
}

TEST(HeaderParser, tells_other_files_that_have_this_name_by_mistake) {
  std::pair<std::string, std::string> const files[] = {
      {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
      {"<!DOCTYPE html>", "web page"},
      {"PK\x03\x04 and more", "archive of torch"},
      {R"({"weight_map": {}})", "index"},
  };
  for (auto const& [content, hint] : files) {
    try {
      (void)header_extent(to_bytes(content), content.size(), {});
      ADD_FAILURE() << content;
    } catch (FormatError const& error) {
      EXPECT_NE(error.info().hint.find(hint), std::string::npos) << error.what();
    }
  }
}

TEST(HeaderParser, names_the_malformed_tensor) {
  try {
    (void)open_plain(file_of(R"({"layers.7":{"dtype":"U8","shape":[3],"data_offsets":[0,1]}})", "x"));
    FAIL() << "accepted";
  } catch (FormatError const& e) {
    EXPECT_NE(std::string(e.what()).find("layers.7"), std::string::npos);
  }
}

TEST(HeaderParser, accepts_whitespace_around_the_header) {
  EXPECT_EQ(open_plain(file_of(std::string(" \t\r\n") + one_byte + " \n\t\r", "x")).entries().size(), 1U);
}

TEST(HeaderParser, accepts_a_zero_size_tensor_listed_after_one_at_the_same_offset) {
  auto const image = open_plain(file_of(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})",
      "xy"));
  ASSERT_EQ(image.entries().size(), 2U);
  EXPECT_EQ(image.entries()[0].name, "a");
}

TEST(HeaderParser, accepts_names_with_emoji_slashes_and_escapes) {
  auto const image =
      open_plain(file_of(R"({"../\ud83d\ude00\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", "x"));
  EXPECT_EQ(image.entries()[0].name, "../\xf0\x9f\x98\x80\n");
}

TEST(HeaderParser, keeps_the_last_of_a_repeated_name_when_lenient) {
  auto const image = open_plain(
      file_of(
          R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
          "x"),
      Strictness::lenient);
  ASSERT_EQ(image.entries().size(), 1U);
  EXPECT_EQ(image.entries()[0].dtype, Dtype::i8);
}

TEST(HeaderParser, skips_unknown_values_of_any_form_when_lenient) {
  auto const image = open_plain(
      file_of(
          R"({"a":{"x":{"y":[1,{"z":null}],"w":-1.5},"dtype":"U8","v":[true],"shape":[1],"u":"s","data_offsets":[0,1]}})",
          "x"),
      Strictness::lenient);
  EXPECT_EQ(image.entries().size(), 1U);
}

TEST(HeaderParser, refuses_deep_unknown_values_even_when_lenient) {
  auto const deep = std::string(129, '[') + std::string(129, ']');
  EXPECT_THROW(
      (void)open_plain(file_of(R"({"a":{"x":)" + deep + R"(,"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
                       Strictness::lenient),
      FormatError);
}

}  // namespace
}  // namespace crossrank::codec
