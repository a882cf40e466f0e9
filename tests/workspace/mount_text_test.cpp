#include "workspace/nfs/mount_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::workspace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MountText, names_file_system_mount_point_and_options) {
  auto const text = mount_text("/proc/self");
  EXPECT_THAT(text, StartsWith("proc "));
  EXPECT_THAT(text, HasSubstr(" on /proc (r"));
}

TEST(MountText, finds_the_mount_of_a_missing_path) {
  EXPECT_THAT(mount_text("/proc/none/at/all"), HasSubstr(" on /proc ("));
  EXPECT_THAT(mount_text("/processes"), ::testing::Not(HasSubstr(" on /proc (")));
}

}  // namespace
}  // namespace crossrank::workspace
