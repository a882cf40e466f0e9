#include "tools/checkpoint/checkpoint_request.hpp"

#include <string>

#include <CLI/CLI.hpp>

#include "tools/checkpoint/checkpoint_report.hpp"
#include "tools/cli/session.hpp"
#include "workspace/checkpoint/write/output_request.hpp"

namespace crossrank::tools {
namespace {

/// Returns the options that `consolidate` and `split` have in common.
template <class Options>
Options common_options(CheckpointRequest const& request, Session const& session) {
  Options options;
  options.format = request.format;
  options.force = request.output.force;
  options.resume = request.output.resume;
  options.read_back = request.output.no_read_back ? checkpoint::ReadBack::none : checkpoint::ReadBack::all;
  options.threads = request.session.threads;
  options.stop = session.stop;
  options.on_progress = [&session](auto const& progress) { session.progress.show(progress); };
  return options;
}

CommandResult answer(CheckpointRequest const& request, Session const& session) {
  auto const& output = request.output;
  auto const ranks = session.world.world_size();
  auto const plan = checkpoint::MergePlan::make(session.world, request.in, request.plan);
  if (request.tp > 0) {
    auto options = common_options<checkpoint::SplitOptions>(request, session);
    options.tp = request.tp;
    options.moe_ep = request.moe_ep;
    options.rules = request.plan.rules;
    if (!output.explain.empty())
      return explain_shards(plan, checkpoint::split_request(plan, output.out, options, ranks), output.explain);
    if (output.dry_run) return describe_request(plan, checkpoint::split_request(plan, output.out, options, ranks));
    return describe_summary(plan, checkpoint::split(session.world, plan, output.out, options), output);
  }
  if (!output.explain.empty()) return explain_tensors(plan, output.explain);
  auto options = common_options<checkpoint::ConsolidateOptions>(request, session);
  options.max_shard_bytes = output.max_shard_bytes;
  options.single_file = output.single_file;
  if (output.dry_run) return describe_request(plan, checkpoint::consolidate_request(plan, output.out, options, ranks));
  return describe_summary(plan, checkpoint::consolidate(session.world, plan, output.out, options), output);
}

}  // namespace

int run_checkpoint_command(std::string const& name, CheckpointRequest const& request) {
  return run_session(name, request.session, [&](Session const& session) { return answer(request, session); });
}

void finish_checkpoint_command(CLI::App& command, std::shared_ptr<CheckpointRequest const> const& request,
                               char const* examples, int& exit_code) {
  command.footer(std::string(examples) + "\n" + written_json + "\n" + exit_codes);
  command.callback(
      [request, name = command.get_name(), &exit_code] { exit_code = run_checkpoint_command(name, *request); });
}

}  // namespace crossrank::tools
