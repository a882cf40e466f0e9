#include "tests/support/rank_scenario.hpp"

#include <cstdio>

namespace crossrank::test {
namespace {

// The static objects of the scenarios fill the list before main, hence a function-local static.
RankScenario const*& first_scenario() noexcept {
  static constinit RankScenario const* first = nullptr;
  return first;
}

}  // namespace

void RankSelf::say(std::string_view line) const {
  std::fprintf(stdout, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

RankScenario::RankScenario(char const* name, RankBody body) noexcept
    : name_(name), body_(body), next_(first_scenario()) {
  first_scenario() = this;
}

RankScenario const* RankScenario::find(std::string_view name) noexcept {
  auto const* at = first_scenario();
  while (at != nullptr && at->name_ != name) at = at->next_;
  return at;
}

}  // namespace crossrank::test
