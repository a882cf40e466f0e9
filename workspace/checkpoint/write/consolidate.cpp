#include <crossrank/checkpoint.hpp>

#include <chrono>
#include <functional>
#include <string>

#include "workspace/checkpoint/write/output_request.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"

namespace crossrank::checkpoint {
namespace {

Summary write_plan(Collective const& world, MergePlan const& plan, std::string const& operation,
                   std::function<WriteRequest()> const& lay_out) {
  auto const started = std::chrono::steady_clock::now();
  WriteRequest request;
  agree(world, operation, [&] { request = lay_out(); });
  require_equal_replicas(
      world, *plan.state().layout,
      {.operation = operation, .threads = request.threads, .on_progress = request.on_progress, .stop = request.stop});
  auto summary = write_checkpoint(world, request);
  summary.elapsed = std::chrono::steady_clock::now() - started;
  return summary;
}

}  // namespace

Summary consolidate(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                    ConsolidateOptions const& options) {
  return write_plan(world, plan, "consolidate",
                    [&] { return consolidate_request(plan, out, options, world.world_size()); });
}

Summary split(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
              SplitOptions const& options) {
  return write_plan(world, plan, "split", [&] { return split_request(plan, out, options, world.world_size()); });
}

}  // namespace crossrank::checkpoint
