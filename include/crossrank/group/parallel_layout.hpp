#pragma once
#include <vector>

#include <crossrank/export.hpp>

namespace crossrank {

/// Sizes of the standard axes, the last one fastest.
struct ParallelSizes {
  int external_data_parallel = 1;    ///< independent replicas
  int data_parallel = 1;             ///< replicas that share expert layers
  int pipeline_parallel = 1;         ///< pipeline stages
  int prefill_context_parallel = 1;  ///< ranks that share a prompt
  int tensor_parallel = 1;           ///< ranks that share a layer
};

/// The groups along each axis, each list as `GroupCoordinator::create` takes it.
struct ParallelLayout {
  std::vector<std::vector<int>> data_parallel{};             ///< along the data-parallel axis
  std::vector<std::vector<int>> pipeline_parallel{};         ///< along the pipeline axis
  std::vector<std::vector<int>> prefill_context_parallel{};  ///< along the prefill-context axis
  std::vector<std::vector<int>> tensor_parallel{};           ///< along the tensor-parallel axis
  std::vector<std::vector<int>> expert_parallel{};           ///< data x prefill context x tensor parallel, merged
};

/// Lays ranks out as [external DP, DP, PP, PCP, TP]. Local. `UsageError` for a size below 1 or more than 2^30 ranks.
[[nodiscard]] CROSSRANK_EXPORT ParallelLayout parallel_layout(ParallelSizes const& sizes);

}  // namespace crossrank
