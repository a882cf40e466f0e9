#include "tools/split_command.hpp"

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <crossrank/checkpoint.hpp>

#include "tools/checkpoint_answer.hpp"
#include "tools/checkpoint_options.hpp"
#include "tools/session.hpp"
#include "workspace/checkpoint/output_plan.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* examples =
    R"(Writes rank0.safetensors to rank<N-1>.safetensors, one for each tensor-parallel rank, and the configs: the inverse
of `crossrank consolidate`. Shards as input are cut anew for another number of ranks, and no merged model is written
between. Packed weights, scales and group ids are cut as their number format wants; a number of ranks that does not
divide heads, groups or blocks is refused.

Examples:
  crossrank split model/ shards/ --tp 4
  crossrank split shards8/ shards2/ --tp 2              from eight ranks to two
  crossrank split model/ shards/ --tp 4 --dry-run
  crossrank split model/ shards/ --tp 4 --rules my_rules.json
)";

struct Request {
  std::filesystem::path in{};
  checkpoint::PlanOptions plan{};
  OutputOptions output{};
  SessionOptions session{};
  int tp = 2;
};

Answer split(Request const& request, Session const& session) {
  auto const plan = checkpoint::MergePlan::make(session.world, request.in, request.plan);
  if (!request.output.explain.empty()) return explain_tensors(plan, request.output.explain);
  checkpoint::SplitOptions options;
  options.tp = request.tp;
  options.rules = request.plan.rules;
  options.force = request.output.force;
  options.resume = request.output.resume;
  options.read_back = request.output.no_read_back ? checkpoint::ReadBack::none : checkpoint::ReadBack::all;
  options.threads = request.session.threads;
  options.stop = session.stop;
  options.on_progress = [&](auto const& progress) { session.progress.show(progress); };
  if (request.output.dry_run) {
    return describe_request(plan,
                            checkpoint::split_request(plan, request.output.out, options, session.world.world_size()));
  }
  auto const summary = checkpoint::split(session.world, plan, request.output.out, options);
  return describe_summary(plan, summary, request.output);
}

}  // namespace

void add_split_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<Request>();
  auto* const command = app.add_subcommand("split", "Cut a model, or other shards, for tensor-parallel ranks");
  add_input_options(*command, request->in, request->plan, GridOptions::from);
  add_output_options(*command, request->output);
  command->add_option("--tp", request->tp, "Tensor-parallel size of the result")
      ->required()
      ->check(CLI::Range(1, 4096));
  add_session_options(*command, request->session);
  command->footer(std::string(examples) + "\n" + exit_codes);
  command->callback([request, &exit_code] {
    exit_code =
        run_session("split", request->session, [&](Session const& session) { return split(*request, session); });
  });
}

}  // namespace crossrank::tools
