#include "tools/convert_command.hpp"

#include <map>
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

using checkpoint::OutputFormat;

constexpr char const* examples =
    R"(Writes a checkpoint in another format, for another number of ranks, or both: what `crossrank consolidate` and
`crossrank split` do, with a choice of files.

  safetensors   model.safetensors, or parts of --max-shard-size and an index; with --tp rank<r>.safetensors
  torch         archives that torch.load opens, also with weights_only: pytorch_model.bin, or parts and an index; with
                --tp rank<r>.pth
  images        state images with a checksum for each tensor and the config, as NFSWorkspace reads them

Nothing that stands in an archive is called. Shards are cut anew without a merged model on disk between.

Examples:
  crossrank convert model.pth model/                     a torch archive as safetensors
  crossrank convert dcp_checkpoint/ model/ --to torch --single-file
  crossrank convert shards8/ shards2/ --tp 2             from eight ranks to two
  crossrank convert model/ workspace/ --to images --tp 4
)";

struct Request {
  std::filesystem::path in{};
  checkpoint::PlanOptions plan{};
  OutputOptions output{};
  SessionOptions session{};
  OutputFormat format = OutputFormat::safetensors;
  int tp = 0;  ///< 0: one whole model
};

/// What both kinds of result are told.
template <class Options>
Options common_options(Request const& request, Session const& session) {
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

Answer convert(Request const& request, Session const& session) {
  auto const& output = request.output;
  auto const ranks = session.world.world_size();
  auto const plan = checkpoint::MergePlan::make(session.world, request.in, request.plan);
  if (!output.explain.empty()) return explain_tensors(plan, output.explain);
  if (request.tp > 0) {
    auto options = common_options<checkpoint::SplitOptions>(request, session);
    options.tp = request.tp;
    if (output.dry_run) return describe_request(plan, checkpoint::split_request(plan, output.out, options, ranks));
    return describe_summary(plan, checkpoint::split(session.world, plan, output.out, options), output);
  }
  auto options = common_options<checkpoint::ConsolidateOptions>(request, session);
  options.max_shard_bytes = output.max_shard_bytes;
  options.single_file = output.single_file;
  if (output.dry_run) return describe_request(plan, checkpoint::consolidate_request(plan, output.out, options, ranks));
  return describe_summary(plan, checkpoint::consolidate(session.world, plan, output.out, options), output);
}

}  // namespace

void add_convert_command(CLI::App& app, int& exit_code) {
  static std::map<std::string, OutputFormat> const formats{
      {"safetensors", OutputFormat::safetensors}, {"torch", OutputFormat::torch}, {"images", OutputFormat::images}};
  auto const request = std::make_shared<Request>();
  auto* const command = app.add_subcommand("convert", "Write a checkpoint in another format or for other ranks");
  add_input_options(*command, request->in, request->plan, GridOptions::from);
  add_output_options(*command, request->output);
  command->add_option("--to", request->format, "Files to write: safetensors (default), torch, images")
      ->transform(CLI::CheckedTransformer(formats).description(""));
  command->add_option("--tp", request->tp, "Tensor-parallel size of the result; one whole model without")
      ->check(CLI::Range(1, 4096));
  add_file_size_options(*command, request->output);
  add_session_options(*command, request->session);
  command->footer(std::string(examples) + "\n" + exit_codes);
  command->callback([request, &exit_code] {
    exit_code =
        run_session("convert", request->session, [&](Session const& session) { return convert(*request, session); });
  });
}

}  // namespace crossrank::tools
