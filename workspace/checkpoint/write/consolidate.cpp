#include <crossrank/checkpoint.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "workspace/checkpoint/write/output_request.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the options that all ranks must share, among those that both jobs have.
template <class Options>
NamedOptions shared_options(Options const& options) {
  return {{"format", option_text(options.format)},
          {"force", option_text(options.force)},
          {"resume", option_text(options.resume)},
          {"read_back", option_text(options.read_back)}};
}

Summary write_plan(Collective const& world, MergePlan const& plan, std::string const& operation, NamedOptions options,
                   std::function<WriteRequest()> const& lay_out) {
  auto const started = std::chrono::steady_clock::now();
  WriteRequest request;
  agree(world, operation, [&] { request = lay_out(); });
  options.emplace_back("plan", request.id);
  require_equal_options(world, operation, options);
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
  auto shared = shared_options(options);
  shared.emplace_back("single_file", option_text(options.single_file));
  shared.emplace_back("max_shard_bytes", std::to_string(options.max_shard_bytes));
  return write_plan(world, plan, "consolidate", std::move(shared),
                    [&] { return consolidate_request(plan, out, options, world.world_size()); });
}

Summary split(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
              SplitOptions const& options) {
  auto shared = shared_options(options);
  shared.emplace_back("tp", std::to_string(options.tp));
  shared.emplace_back("moe_ep", std::to_string(options.moe_ep));
  return write_plan(world, plan, "split", std::move(shared),
                    [&] { return split_request(plan, out, options, world.world_size()); });
}

}  // namespace crossrank::checkpoint
