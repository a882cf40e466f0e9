#include "tools/checkpoint/consolidate_command.hpp"

#include <memory>

#include <CLI/CLI.hpp>

#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/checkpoint/checkpoint_request.hpp"
#include "tools/checkpoint/parts_options.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* consolidate_examples =
    R"(Writes one Hugging Face checkpoint: model.safetensors, or model-0000x-of-0000y.safetensors and their index, and
the configs and tokenizer files that are beside the shards. Reads safetensors shards, state images, torch archives
and distributed checkpoints (DCP). A process needs at most 256 MiB, plus 2 KiB for each tensor and 1 KiB for each of
its shards.

Everything is written to a hidden folder in the output, read back and compared. The files get their names last, and
the config the very last. A job that is killed leaves the old checkpoint, if there was one, or the new one, and
--resume continues from there. If it is killed between two renames, readers refuse the output until `crossrank clean`
or the next job completes them. A lost rank ends the job; finished files stay for --resume.

Examples:
  crossrank consolidate shards/ model/                  sizes and rules follow from the files and their config
  crossrank consolidate shards/ model/ --dry-run        what would be read and written
  crossrank consolidate shards/ model/ --tp 4 --pp 2 --pattern "mp_rank_{tp}_{pp}.safetensors"
  crossrank consolidate shards/ model/ --explain model.layers.0.self_attn.qkv_proj.weight
  crossrank consolidate shards/ model/ --moe-ep 4       experts spread over the tensor-parallel ranks, as vLLM does
  crossrank consolidate shards/ model/ --fused-layout plain    fused layers sharded as one block, as transformers does
  crossrank consolidate shards/ model/ --policy rescale --max-shard-size 10GB -n 4
  mpirun -n 8 crossrank consolidate shards/ model/      ranks of one host; for several hosts, use `crossrank plan`
  crossrank consolidate --plan plan.json --part 7/64    one part of a plan that `crossrank plan` wrote
  crossrank consolidate --plan plan.json --finish       publishes the parts, or names those that are missing

Parts and --finish always continue from finished files, as with --resume. With --json they answer with out, parts, bytes,
files, resumed_files and seconds; a part also with part; --finish --dry-run with dry_run, out, parts and missing: [part].
--finish --dry-run lists the missing parts; if there are none, it checks everything that --finish
checks, and publishes nothing.
)";

}  // namespace

void add_consolidate_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<CheckpointRequest>();
  auto const parts = std::make_shared<PartsRequest>();
  auto* const command = app.add_subcommand("consolidate", "Merge the shards of a model into one checkpoint");
  add_input_options(*command, request->in, request->plan, GridOptions::plain);
  add_output_options(*command, request->output);
  add_file_size_options(*command, request->output);
  add_session_options(*command, request->session);
  add_parts_options(*command, *parts);
  // A plan has these paths.
  command->get_option("shards")->required(false);
  command->get_option("out")->required(false);
  finish_checkpoint_command(*command, request, consolidate_examples, exit_code);
  command->callback([request, parts, command, &exit_code] {
    check_parts_options(*command, *parts);
    exit_code = has_plan(*command) ? run_parts(*parts, *request) : run_checkpoint_command("consolidate", *request);
  });
}

}  // namespace crossrank::tools
