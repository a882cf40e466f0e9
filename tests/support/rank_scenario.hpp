#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::test {

/// What a scenario knows about its rank, one of `world_size` processes that `ProcessRanks` started from this binary.
struct RankSelf {
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> arguments{};  ///< `RankOptions::arguments`, the same on every rank

  /// Prints `line` and flushes it, so that the parent can wait for it.
  void say(std::string_view line) const;
};

using RankBody = int (*)(RankSelf const&);

/// Adds a scenario to the list of this binary. Made by `CROSSRANK_RANK_SCENARIO`.
class RankScenario {
 public:
  RankScenario(char const* name, RankBody body) noexcept;
  /// Returns the scenario with this name, or null.
  [[nodiscard]] static RankScenario const* find(std::string_view name) noexcept;
  [[nodiscard]] int run(RankSelf const& self) const { return body_(self); }

 private:
  char const* name_;
  RankBody body_;
  RankScenario const* next_;
};

}  // namespace crossrank::test

/// Defines what a rank does in its own process: `CROSSRANK_RANK_SCENARIO(name) { ...; return exit_code; }`.
/// `self` is the rank's `RankSelf`. A failed EXPECT makes the exit code 1. Exceptions leave `main` as in any program.
#define CROSSRANK_RANK_SCENARIO(name)                                                                              \
  static int crossrank_scenario_##name([[maybe_unused]] ::crossrank::test::RankSelf const& self);                  \
  static ::crossrank::test::RankScenario const crossrank_scenario_entry_##name{#name, &crossrank_scenario_##name}; \
  static int crossrank_scenario_##name([[maybe_unused]] ::crossrank::test::RankSelf const& self)
