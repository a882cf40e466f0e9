#include <crossrank/checkpoint/parts.hpp>

#include <limits>
#include <optional>
#include <string>

#include <crossrank/error.hpp>

#include "lib/core/settings.hpp"
#include "lib/core/variable_reader.hpp"
#include "workspace/checkpoint/parts/plan_file.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr int max_indices = std::numeric_limits<int>::max();

void require_count(char const* variable, int count, int parts) {
  if (count == parts) return;
  throw UsageError({.operation = parts_operation,
                    .message = std::string("the scheduler runs another number of tasks than the plan has parts"),
                    .expected = std::to_string(parts) + " parts of the plan",
                    .got = std::string(variable) + "=" + std::to_string(count),
                    .hint = "make the plan with as many parts as tasks, or pass `part` yourself"});
}

/// Returns the part of a task of a Slurm array. The array may count from any number and in steps.
std::optional<int> slurm_part(VariableReader const& reader, int parts) {
  auto const task = reader.integer("SLURM_ARRAY_TASK_ID");
  if (!task) return std::nullopt;
  if (auto const count = reader.integer("SLURM_ARRAY_TASK_COUNT"))
    require_count("SLURM_ARRAY_TASK_COUNT", *count, parts);
  auto const first = reader.integer("SLURM_ARRAY_TASK_MIN").value_or(0);
  auto const last = reader.integer("SLURM_ARRAY_TASK_MAX");
  auto const step = reader.integer("SLURM_ARRAY_TASK_STEP").value_or(1);
  auto const offset = *task - first;
  // A list such as 1,5,7 has no regular distance.
  bool const regular = step > 0 && offset >= 0 && offset % step == 0 && (!last || (*last - first) / step == parts - 1);
  if (regular && offset / step < parts) return offset / step;
  throw UsageError(
      {.operation = parts_operation,
       .message = "the numbers of this Slurm array do not identify the part",
       .expected = std::to_string(parts) + " numbers in a row",
       .got = "SLURM_ARRAY_TASK_ID=" + std::to_string(*task) + " in an array from " + std::to_string(first),
       .hint = "submit the array as 0-" + std::to_string(parts - 1) + ", or pass `part` yourself"});
}

std::optional<int> indexed(VariableReader const& reader, char const* variable, int parts) {
  auto const index = reader.integer(variable, max_indices);
  if (!index || *index < parts) return index;
  throw UsageError({.operation = parts_operation,
                    .message = "the plan has no such part",
                    .expected = "a part from 0 to " + std::to_string(parts - 1),
                    .got = std::string(variable) + "=" + std::to_string(*index),
                    .hint = "make the plan with as many parts as tasks"});
}

/// Returns the rank if the job of a launcher has as many ranks as the plan has parts. Several of its processes may run
/// in one task of a scheduler, whose index they share.
std::optional<int> rank_of_fitting_job(VariableReader const& reader, int parts) {
  if (parts < 2 || reader.integer("WORLD_SIZE") != parts) return std::nullopt;
  return indexed(reader, "RANK", parts);
}

}  // namespace

int part_from_environment(PartsPlan const& plan) {
  EnvironmentLookup const lookup = variable_of_process;
  VariableReader const reader(lookup);
  auto const parts = plan.parts();
  if (reader.integer("SLURM_ARRAY_TASK_COUNT")) {
    if (auto const part = slurm_part(reader, parts)) return *part;
  }
  if (auto const part = rank_of_fitting_job(reader, parts)) return *part;
  if (auto const part = slurm_part(reader, parts)) return *part;
  if (auto const part = indexed(reader, "JOB_COMPLETION_INDEX", parts)) return *part;
  if (auto const count = reader.integer("WORLD_SIZE")) {
    if (reader.integer("RANK")) require_count("WORLD_SIZE", *count, parts);
    if (auto const part = indexed(reader, "RANK", parts)) return *part;
  }
  throw UsageError({.operation = parts_operation,
                    .message = "no scheduler says which part this is",
                    .expected = "SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX, or RANK and WORLD_SIZE",
                    .hint = "pass `part`, from 0 to " + std::to_string(parts - 1)});
}

}  // namespace crossrank::checkpoint
