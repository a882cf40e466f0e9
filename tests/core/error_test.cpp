#include <crossrank/error.hpp>

#include <gtest/gtest.h>

namespace crossrank {
namespace {

/// File names are bytes, and so is what a peer says of itself.
TEST(Error, is_json_that_can_be_written_whatever_bytes_it_names) {
  UsageError const error(
      {.operation = "open", .message = "cut \xe2\x82", .resource = "/data/\xff\x01", .details = {"\x80"}});
  auto const text = error.to_json().dump();
  EXPECT_EQ(Json::parse(text)["resource"], "/data/\xef\xbf\xbd\x01");
  EXPECT_EQ(error.info().resource, "/data/\xff\x01");
}

TEST(Error, is_one_line_and_keeps_what_it_knows_in_copies) {
  FormatError const error({.operation = "read", .message = "bad", .section = "header", .offset = 7});
  auto const copy = error;  // NOLINT(performance-unnecessary-copy-initialization): what a copy keeps is tested
  EXPECT_EQ(copy.section(), "header");
  EXPECT_EQ(copy.offset(), 7U);
  EXPECT_EQ(copy.to_json()["code"], "format");
  EXPECT_EQ(std::string(copy.what()).find('\n'), std::string::npos);
}

TEST(Error, counts_ranks_only_where_their_number_is_known) {
  EXPECT_STREQ(UsageError({.operation = "a", .message = "b", .rank = 1, .world_size = 2}).what(), "a: b (rank 1 of 2)");
  EXPECT_STREQ(UsageError({.operation = "a", .message = "b", .rank = 1}).what(), "a: b (rank 1)");
}

}  // namespace
}  // namespace crossrank
