#include <crossrank/checkpoint/memory_export.hpp>

#include <memory>
#include <string>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/memory/exchange/memory_fill.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {

StateDict get_full_state_dict(Collective const& world, StateDict const& weights, Placements const& placements,
                              FullStateOptions const& options) {
  std::string const operation = "get_full_state_dict";
  require_equal_options(world, operation, {{"dst", std::to_string(options.dst)}});
  agree(world, operation, [&] {
    if (options.dst >= 0 && options.dst < world.world_size()) return;
    throw UsageError({.operation = operation,
                      .message = "`dst` is not a rank of the group",
                      .expected = "0 to " + std::to_string(world.world_size() - 1),
                      .got = std::to_string(options.dst),
                      .hint = "count `dst` inside the group of the call"});
  });
  auto const plan = plan_export(world, weights, placements, options.model, operation);
  auto targets = per_rank<FillTarget>(world.world_size());
  at_rank(targets, options.dst) = {
      .source = std::make_shared<MergedSource>(plan.layout),
      .inputs_of = [&](WorkUnit const& unit) { return inputs_of(*plan.layout, unit.tensor, unit.offset, unit.bytes); }};
  return fill_memory(world, plan, targets, {.operation = operation, .threads = options.threads, .stop = options.stop});
}

}  // namespace crossrank::checkpoint
