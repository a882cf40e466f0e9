#include "tools/checkpoint/split_command.hpp"

#include <memory>

#include <CLI/CLI.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/checkpoint/checkpoint_request.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* split_examples =
    R"(Writes rank0.safetensors to rank<N-1>.safetensors, one for each tensor-parallel rank, and the configs. This is the
inverse of `crossrank consolidate`. Shards as input are split for another number of ranks without a merged model on disk.
Packed weights, scales and group ids are split as their number format needs. A number of ranks that does not divide heads,
groups or blocks is an error.

Examples:
  crossrank split model/ shards/ --tp 4
  crossrank split shards8/ shards2/ --tp 2              from eight ranks to two
  crossrank split model/ shards/ --tp 4 --dry-run
  crossrank split model/ shards/ --tp 4 --rules my_rules.json
)";

}  // namespace

void add_split_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<CheckpointRequest>();
  auto* const command = app.add_subcommand("split", "Split a model, or other shards, for tensor-parallel ranks");
  add_input_options(*command, request->in, request->plan, GridOptions::from);
  add_output_options(*command, request->output);
  command->add_option("--tp", request->tp, "Tensor-parallel size of the result")
      ->required()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--moe-ep", request->moe_ep,
                   "Groups of stacked experts among the ranks of the result; rank t gets group t modulo this number")
      ->check(CLI::Range(1, 4096));
  add_session_options(*command, request->session);
  finish_checkpoint_command(*command, request, split_examples, exit_code);
}

}  // namespace crossrank::tools
