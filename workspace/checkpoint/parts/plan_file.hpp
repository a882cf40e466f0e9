#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/json.hpp>

#include "workspace/checkpoint/plan/plan_inputs.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"

namespace crossrank::checkpoint {

inline constexpr char const* parts_operation = "parts plan";

/// The place of a recipe among the recipes of a plan.
struct RecipePlace {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the file has no recipe
  std::uint64_t checksum = 0;
};

/// One output file of a plan.
struct PlannedFile {
  std::string name{};
  std::uint64_t bytes = 0;
  int part = 0;
  RecipePlace recipe{};
};

/// The contents of a plan file.
struct PlanFile {
  PlanInputs inputs{};
  std::uint64_t merge_hash = 0;     ///< hash of the merge plan, over the headers of all inputs
  std::vector<FileStamp> stamps{};  ///< inputs and sidecar files, when the plan was made
  std::filesystem::path out{};      ///< absolute path of the output
  PartsOptions options{};
  std::vector<PlannedFile> files{};
  std::string made_by{};  ///< version of crossrank
};

/// Returns the text of a plan file, with a checksum. Throws `UsageError` if a path is not valid UTF-8.
[[nodiscard]] std::string to_text(PlanFile const& plan);

/// Reads a plan from the JSON object in `file`. Throws `FormatError` with the field in `section` if the plan is
/// damaged, of another version, or has values that no plan has, such as a file name that leads out of the output.
[[nodiscard]] PlanFile parse_plan(Json const& json, std::string const& file);

/// Reads a plan file, as `parse_plan` does. Throws `IoError` if there is none.
[[nodiscard]] PlanFile read_plan_file(std::filesystem::path const& path);

}  // namespace crossrank::checkpoint
