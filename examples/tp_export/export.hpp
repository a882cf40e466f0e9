#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

#include "job.hpp"
#include "report.hpp"

namespace tp_export {

/// The result of an export. Only rank 0 has problems and files.
struct Outcome {
  std::vector<Row> rows{};
  std::vector<std::string> problems{};
  std::set<std::filesystem::path> files{};
};

/// Merges the model through shared memory twice, writes it to `out` and reads it back, then merges it through files in
/// `exchange`. Rank 0 compares every result with the source. Collective.
[[nodiscard]] Outcome export_model(xr::Collective const& world, Job const& job, std::filesystem::path const& out,
                                   std::filesystem::path const& exchange);

}  // namespace tp_export
