#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/state.hpp>

#include "workspace/checkpoint/memory/export_plan.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

/// What one rank receives: the tensors of a source, which reads from the merged model.
struct FillTarget {
  std::shared_ptr<ShardSource const> source{};  ///< null: nothing
  /// Returns the bytes of the cells that a unit depends on.
  std::function<std::vector<CellRange>(WorkUnit const& unit)> inputs_of{};
};

struct FillOptions {
  std::string operation{};
  int threads = 0;
  std::stop_token stop{};
};

/// Reads the tensors of each rank's target into its memory. Collective; all ranks pass the targets of all ranks.
[[nodiscard]] StateDict fill_memory(Collective const& world, ExportPlan const& plan,
                                    std::vector<FillTarget> const& targets, FillOptions const& options);

}  // namespace crossrank::checkpoint
