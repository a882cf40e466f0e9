#include "tools/checkpoint/convert_command.hpp"

#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/checkpoint/checkpoint_request.hpp"
#include "tools/cli/option_validators.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::OutputFormat;

constexpr char const* convert_examples =
    R"(Writes a checkpoint in another format, for another number of ranks, or both. Does what `crossrank consolidate` and
`crossrank split` do, with a choice of output files.

  safetensors   model.safetensors, or parts of --max-shard-size and an index; with --tp rank<r>.safetensors
  torch         archives that torch.load opens, also with weights_only: pytorch_model.bin, or parts and an index; with
                --tp rank<r>.pth
  images        state images with a checksum for each tensor and the config, as NFSWorkspace reads them

Nothing in an archive is called. Shards are split for other ranks without a merged model on disk.

Examples:
  crossrank convert model.pth model/                     a torch archive as safetensors
  crossrank convert dcp_checkpoint/ model/ --to torch --single-file
  crossrank convert shards8/ shards2/ --tp 2             from eight ranks to two
  crossrank convert model/ workspace/ --to images --tp 4
)";

}  // namespace

void add_convert_command(CLI::App& app, int& exit_code) {
  static std::map<std::string, OutputFormat> const formats{
      {"safetensors", OutputFormat::safetensors}, {"torch", OutputFormat::torch}, {"images", OutputFormat::images}};
  auto const request = std::make_shared<CheckpointRequest>();
  auto* const command = app.add_subcommand("convert", "Write a checkpoint in another format or for other ranks");
  add_input_options(*command, request->in, request->plan, GridOptions::from);
  add_output_options(*command, request->output);
  command->add_option("--to", request->format, "Files to write: safetensors (default), torch, images")
      ->transform(one_of(formats));
  command
      ->add_option("--tp", request->tp, "Tensor-parallel size of the result; without it the result is one whole model")
      ->check(CLI::Range(1, 4096));
  add_file_size_options(*command, request->output);
  add_session_options(*command, request->session);
  finish_checkpoint_command(*command, request, convert_examples, exit_code);
}

}  // namespace crossrank::tools
