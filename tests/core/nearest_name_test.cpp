#include "lib/core/nearest_name.hpp"

#include <gtest/gtest.h>

namespace crossrank {
namespace {

TEST(NearestName, ignores_two_edits_and_case) {
  EXPECT_EQ(nearest_name("TIMOET", {"CHECK", "TIMEOUT"}), "TIMEOUT");
  EXPECT_EQ(nearest_name("check", {"CHECK", "TIMEOUT"}), "CHECK");
  EXPECT_EQ(nearest_name("verfiy", {"split", "verify"}), "verify");
}

TEST(NearestName, is_empty_when_no_name_is_near) {
  EXPECT_EQ(nearest_name("frobnicate", {"run", "verify"}), std::nullopt);
  EXPECT_EQ(nearest_name("anything", {}), std::nullopt);
}

}  // namespace
}  // namespace crossrank
