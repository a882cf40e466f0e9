#include <crossrank/checkpoint.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <system_error>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/merged_source.hpp"
#include "workspace/checkpoint/output_layout.hpp"
#include "workspace/checkpoint/plan_state.hpp"
#include "workspace/checkpoint/require_elsewhere.hpp"
#include "workspace/checkpoint/twins.hpp"
#include "workspace/checkpoint/write_checkpoint.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* operation = "consolidate";

}  // namespace

Summary consolidate(Collective const& world, MergePlan const& plan, std::filesystem::path const& out,
                    ConsolidateOptions const& options) {
  auto const& state = plan.state();
  auto const started = std::chrono::steady_clock::now();
  agree(world, operation, [&] { require_elsewhere(operation, state.shards, out); });
  require_equal_twins(world, *state.model, {.operation = operation, .threads = options.threads, .stop = options.stop});
  auto const source = std::make_shared<MergedSource>(state.model);
  auto const limit = options.single_file ? 0 : options.max_shard_bytes;
  WriteRequest request{.operation = operation, .out = out};
  request.id = job_id(state, "consolidate " + std::to_string(limit));
  request.files = lay_out_model(source, {.max_file_bytes = limit, .ranks = world.world_size()});
  auto const index = request.files.size() > 1 ? make_index(request.files) : Json();
  request.extras = extra_files(state.model->set, 1, index);
  request.force = options.force;
  request.resume = options.resume;
  request.read_back = options.read_back;
  request.threads = options.threads;
  request.on_progress = options.on_progress;
  request.stop = options.stop;
  auto summary = write_checkpoint(world, request);
  summary.elapsed = std::chrono::steady_clock::now() - started;
  return summary;
}

}  // namespace crossrank::checkpoint
