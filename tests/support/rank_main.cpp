#include "tests/support/rank_scenario.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using crossrank::test::RankScenario;
using crossrank::test::RankSelf;

int number_from_environment(char const* name, int otherwise) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<int>(std::strtol(text, nullptr, 10));
}

int run_scenario(std::string_view name, RankSelf self) {
  auto const* const scenario = RankScenario::find(name);
  if (scenario == nullptr) {
    std::fprintf(stderr, "no rank scenario is called %.*s\n", static_cast<int>(name.size()), name.data());
    return 99;
  }
  self.rank = number_from_environment("CROSSRANK_TEST_RANK", 0);
  self.world_size = number_from_environment("CROSSRANK_TEST_WORLD_SIZE", 1);
  int const code = scenario->run(self);
  bool const failed = testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  return code == 0 && failed ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view flag = "--crossrank-rank-scenario=";
  testing::InitGoogleMock(&argc, argv);
  if (argc < 2 || !std::string_view(argv[1]).starts_with(flag)) return RUN_ALL_TESTS();
  RankSelf self;
  self.arguments.assign(argv + 2, argv + argc);
  return run_scenario(std::string_view(argv[1]).substr(flag.size()), std::move(self));
}
