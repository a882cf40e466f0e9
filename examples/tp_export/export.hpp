#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "examples/tp_export/job.hpp"
#include "examples/tp_export/report.hpp"

namespace tp_export {

/// What an export did; problems and files are known to rank 0 alone.
struct Outcome {
  std::vector<Row> rows{};
  std::vector<std::string> problems{};
  std::set<std::filesystem::path> files{};
};

/// Merges the model through shared memory, twice, writes it to `out` and reads it back, then merges it through files in
/// `exchange`. Each time rank 0 compares all of it with the source. Collective.
[[nodiscard]] Outcome export_model(xr::Collective const& world, Job const& job, std::filesystem::path const& out,
                                   std::filesystem::path const& exchange);

}  // namespace tp_export
