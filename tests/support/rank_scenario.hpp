#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::test {

/// What a scenario knows of itself: one of `world_size` processes that `ProcessRanks` started from this very binary.
struct RankSelf {
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> arguments{};  ///< `RankOptions::arguments`, the same on every rank

  /// Prints `line` and flushes it: a marker that the parent can wait for.
  void say(std::string_view line) const;
};

using RankBody = int (*)(RankSelf const&);

/// Puts a scenario on the list of this binary; made by `CROSSRANK_RANK_SCENARIO`.
class RankScenario {
 public:
  RankScenario(char const* name, RankBody body) noexcept;
  /// The scenario called `name`, or null.
  [[nodiscard]] static RankScenario const* find(std::string_view name) noexcept;
  [[nodiscard]] int run(RankSelf const& self) const { return body_(self); }

 private:
  char const* name_;
  RankBody body_;
  RankScenario const* next_;
};

}  // namespace crossrank::test

/// Defines what a rank does in a process of its own: `CROSSRANK_RANK_SCENARIO(name) { ...; return exit_code; }`.
/// `self` is its `RankSelf`. A failed EXPECT makes the exit code 1; exceptions leave `main` as they would in a program.
#define CROSSRANK_RANK_SCENARIO(name)                                                                              \
  static int crossrank_scenario_##name([[maybe_unused]] ::crossrank::test::RankSelf const& self);                  \
  static ::crossrank::test::RankScenario const crossrank_scenario_entry_##name{#name, &crossrank_scenario_##name}; \
  static int crossrank_scenario_##name([[maybe_unused]] ::crossrank::test::RankSelf const& self)
