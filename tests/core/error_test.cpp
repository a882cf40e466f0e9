#include <crossrank/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank {
namespace {

using testing::HasSubstr;
using testing::Not;

/// File names and texts of peers may be any bytes.
TEST(Error, converts_to_json_with_any_bytes) {
  UsageError const error(
      {.operation = "open", .message = "cut \xe2\x82", .resource = "/data/\xff\x01", .details = {"\x80"}});
  auto const text = error.to_json().dump();
  EXPECT_EQ(Json::parse(text)["resource"], "/data/\xef\xbf\xbd\x01");
  EXPECT_EQ(error.info().resource, "/data/\xff\x01");
}

TEST(Error, is_one_line_and_keeps_its_fields_when_copied) {
  FormatError const error({.operation = "read", .message = "bad", .section = "header", .offset = 7});
  auto const copy = error;  // NOLINT(performance-unnecessary-copy-initialization): tests the copy
  EXPECT_EQ(copy.section(), "header");
  EXPECT_EQ(copy.offset(), 7U);
  EXPECT_EQ(copy.to_json()["code"], "format");
  EXPECT_EQ(std::string(copy.what()).find('\n'), std::string::npos);
}

/// An error of a file or of `connect` has no group.
TEST(Error, has_its_failed_ranks_in_ascending_order) {
  MismatchError const error({.operation = "connect", .failed_ranks = {2, 0, 1}});
  EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(0, 1, 2));
}

TEST(Error, mentions_a_group_only_if_there_is_one) {
  IoError const file({.operation = "read", .message = "no such file", .resource = "/a"});
  EXPECT_THAT(file.report(), Not(HasSubstr("group")));
  EXPECT_FALSE(file.to_json().contains("group_usable"));
  UnavailableError const alone({.operation = "connect", .message = "nobody came", .rank = 1, .group_usable = false});
  EXPECT_THAT(alone.report(), Not(HasSubstr("group")));
  RemoteError const remote({.operation = "gather", .message = "rank 1 threw", .group = "world"});
  EXPECT_THAT(remote.report(), HasSubstr("the group can be used again"));
  EXPECT_EQ(remote.to_json()["group_usable"], true);
  PeerLostError const lost({.operation = "barrier", .message = "rank 1 died", .group = "world", .group_usable = false});
  EXPECT_THAT(lost.report(), HasSubstr("the group is dead"));
}

/// A wrong argument says nothing about the state of the group.
TEST(Error, does_not_call_a_group_usable_after_a_usage_error) {
  UsageError const closed({.operation = "barrier", .message = "the group is closed", .group = "world"});
  EXPECT_THAT(closed.report(), Not(HasSubstr("can be used again")));
}

TEST(Error, shows_the_world_size_only_if_known) {
  EXPECT_STREQ(UsageError({.operation = "a", .message = "b", .rank = 1, .world_size = 2}).what(), "a: b (rank 1 of 2)");
  EXPECT_STREQ(UsageError({.operation = "a", .message = "b", .rank = 1}).what(), "a: b (rank 1)");
}

}  // namespace
}  // namespace crossrank
