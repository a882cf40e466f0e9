#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>

#include "tests/checkpoint/parts/planned_parts.hpp"

namespace crossrank {
namespace {

using checkpoint::PartsPlan;

struct EnvironmentCase {
  char const* name;
  std::vector<std::pair<char const*, char const*>> variables;
  std::optional<int> part;
};

class PartsEnvironment : public test::PlannedParts, public testing::WithParamInterface<EnvironmentCase> {
 protected:
  ~PartsEnvironment() override {
    for (auto const& [name, value] : GetParam().variables) ::unsetenv(name);
  }
};

TEST_P(PartsEnvironment, gives_the_part) {
  auto const made = PartsPlan::make(plan(), out(), {.parts = 4, .max_shard_bytes = 1100, .force = true});
  for (auto const* const name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
  for (auto const& [name, value] : GetParam().variables) ::setenv(name, value, 1);
  if (GetParam().part) {
    EXPECT_EQ(checkpoint::part_from_environment(made), *GetParam().part);
  } else {
    EXPECT_THROW((void)checkpoint::part_from_environment(made), UsageError);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PartsEnvironment,
    testing::Values(
        EnvironmentCase{"nothing", {}, std::nullopt},
        EnvironmentCase{"slurm_from_0",
                        {{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_ARRAY_TASK_MIN", "0"}},
                        3},
        EnvironmentCase{"slurm_from_1",
                        {{"SLURM_ARRAY_TASK_ID", "4"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_ARRAY_TASK_MIN", "1"}},
                        3},
        EnvironmentCase{"slurm_in_steps",
                        {{"SLURM_ARRAY_TASK_ID", "14"},
                         {"SLURM_ARRAY_TASK_COUNT", "4"},
                         {"SLURM_ARRAY_TASK_MIN", "10"},
                         {"SLURM_ARRAY_TASK_MAX", "16"},
                         {"SLURM_ARRAY_TASK_STEP", "2"}},
                        2},
        EnvironmentCase{"slurm_of_other_size",
                        {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "8"}, {"SLURM_ARRAY_TASK_MIN", "0"}},
                        std::nullopt},
        EnvironmentCase{"slurm_list",
                        {{"SLURM_ARRAY_TASK_ID", "7"},
                         {"SLURM_ARRAY_TASK_COUNT", "4"},
                         {"SLURM_ARRAY_TASK_MIN", "1"},
                         {"SLURM_ARRAY_TASK_MAX", "9"}},
                        std::nullopt},
        EnvironmentCase{"slurm_not_a_number", {{"SLURM_ARRAY_TASK_ID", "two"}}, std::nullopt},
        EnvironmentCase{"slurm_count_not_a_number",
                        {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "four"}},
                        std::nullopt},
        EnvironmentCase{
            "slurm_negative", {{"SLURM_ARRAY_TASK_ID", "-1"}, {"SLURM_ARRAY_TASK_COUNT", "4"}}, std::nullopt},
        EnvironmentCase{"kubernetes_negative", {{"JOB_COMPLETION_INDEX", "-1"}}, std::nullopt},
        EnvironmentCase{"kubernetes", {{"JOB_COMPLETION_INDEX", "2"}}, 2},
        EnvironmentCase{"kubernetes_too_large", {{"JOB_COMPLETION_INDEX", "4"}}, std::nullopt},
        EnvironmentCase{"torchrun", {{"RANK", "1"}, {"WORLD_SIZE", "4"}}, 1},
        EnvironmentCase{"torchrun_rank_outside_the_world", {{"RANK", "4"}, {"WORLD_SIZE", "4"}}, std::nullopt},
        EnvironmentCase{"torchrun_negative_rank", {{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, std::nullopt},
        EnvironmentCase{"torchrun_without_a_world", {{"RANK", "1"}}, std::nullopt},
        EnvironmentCase{"torchrun_of_other_size", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}, std::nullopt},
        EnvironmentCase{
            "torchrun_in_kubernetes", {{"JOB_COMPLETION_INDEX", "1"}, {"RANK", "3"}, {"WORLD_SIZE", "4"}}, 3},
        EnvironmentCase{"kubernetes_before_ranks_of_another_job",
                        {{"JOB_COMPLETION_INDEX", "2"}, {"RANK", "1"}, {"WORLD_SIZE", "8"}},
                        2},
        EnvironmentCase{"torchrun_before_an_array_without_a_count",
                        {{"SLURM_ARRAY_TASK_ID", "3"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}},
                        1},
        EnvironmentCase{"slurm_before_others",
                        {{"SLURM_ARRAY_TASK_ID", "3"},
                         {"SLURM_ARRAY_TASK_COUNT", "4"},
                         {"JOB_COMPLETION_INDEX", "2"},
                         {"RANK", "1"},
                         {"WORLD_SIZE", "4"}},
                        3}),
    [](auto const& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace crossrank
