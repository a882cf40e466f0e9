#include "lib/core/text/nearest_name.hpp"

#include <string>
#include <vector>

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
  EXPECT_EQ(nearest_name("zz", {"s", "t"}), std::nullopt) << "nothing in common";
  EXPECT_EQ(nearest_name("w2", {"w1"}), "w1");
}

TEST(DidYouMean, names_the_nearest_of_at_most_a_thousand_names) {
  EXPECT_EQ(did_you_mean("verfiy", {"split", "verify"}), "did you mean verify?");
  EXPECT_EQ(did_you_mean("frobnicate", {"split", "verify"}), "");
  EXPECT_EQ(did_you_mean("verfiy", std::vector<std::string>(1'000, "verify")), "did you mean verify?");
  EXPECT_EQ(did_you_mean("verfiy", std::vector<std::string>(1'001, "verify")), "");
}

}  // namespace
}  // namespace crossrank
