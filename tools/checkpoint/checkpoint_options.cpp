#include "tools/checkpoint/checkpoint_options.hpp"

#include <map>

#include <CLI/CLI.hpp>

#include "tools/cli/option_validators.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::ArchiveCrc;
using checkpoint::FusedLayout;
using checkpoint::ScalePolicy;

constexpr int max_processes = 256;

void add_size(CLI::App& command, std::string const& name, int& value, char const* text) {
  command.add_option("--" + name, value, text)->check(CLI::Range(1, max_ranks));
}

}  // namespace

char const* const exit_codes =
    R"(Exit codes:
  0    done
  1    the files are damaged, incomplete, or contradict each other
  2    usage error: an invalid option, or the output exists
  3    the system refused: no such file, no permission, no space
  4    a rank was lost, or the ranks see different files
  128+n  ended by signal n (130: Ctrl-C); nothing is left behind,
         but a job with --resume keeps finished files)";

char const* const written_json =
    R"(With --json the answer is one JSON object on standard output with command, ok and exit_code; unless there is an
error, also with warnings: [text]. The other fields are
  written     out, bytes, files, resumed_files, seconds, plan (hash, sources, tp, pp, ep, tensors, bytes,
              requantized: [{tensor, bound}], dropped: [{name, reason}])
  --dry-run   dry_run, out, plan, files: [{name, bytes, tensors, rank} or {name, copied}]
  --explain   explain: {tensor: text}
  an error    error (code, what, message, expected, got, resource, system, hint, failed_ranks, details: [...])
)";

CLI::Option* add_allow_global(CLI::App& command, std::vector<std::string>& names) {
  return command
      .add_option("--allow-global", names,
                  "A class that torch archives may mention besides the known ones, such as mymodel.Config; it is never "
                  "called")
      ->type_name("MODULE.NAME")
      ->allow_extra_args(false);
}

void add_input_options(CLI::App& command, std::filesystem::path& in, checkpoint::PlanOptions& plan, GridOptions grid) {
  static std::map<std::string, ScalePolicy> const policies{
      {"exact", ScalePolicy::exact}, {"rescale", ScalePolicy::rescale}, {"requantize", ScalePolicy::requantize}};
  command.add_option("shards", in, "Directory with the shards, or one file")->required();
  command.add_option("--rules", plan.rules,
                     "JSON file with your own rules; they take precedence over the built-in ones");
  command
      .add_option("--policy", plan.policy,
                  "What to do when the ranks' scales differ: exact (an error, the default), rescale, requantize")
      ->transform(one_of(policies));
  static std::map<std::string, ArchiveCrc> const crcs{
      {"require", ArchiveCrc::require}, {"warn", ArchiveCrc::warn}, {"ignore", ArchiveCrc::ignore}};
  command
      .add_option("--crc", plan.crc,
                  "What to do when bytes of a torch archive do not match their checksum: require (an error, the "
                  "default), warn, ignore")
      ->transform(one_of(crcs));
  add_allow_global(command, plan.extra_globals);
  command
      .add_option(
          "--model-key", plan.model_key,
          "Key that holds the model in torch archives, or first part of the tensor names in a distributed checkpoint, "
          "such as ema_state_dict, or app.model if nested; needed only if there is no known key; . takes everything")
      ->type_name("KEY");
  bool const plain = grid == GridOptions::plain;
  std::string const prefix = plain ? "" : "from-";
  add_size(command, prefix + "tp", plan.tp,
           "Tensor-parallel size of the shards, if file names and config do not give it");
  add_size(command, prefix + "pp", plan.pp, "Pipeline size of the shards");
  add_size(command, prefix + "ep", plan.ep, "Expert-parallel size of the shards");
  add_size(
      command, prefix + "moe-ep", plan.moe_ep,
      "Groups of experts among the tensor-parallel ranks; each rank holds some experts and a piece of everything else");
  static std::map<std::string, FusedLayout> const layouts{{"per_rank", FusedLayout::per_rank},
                                                          {"plain", FusedLayout::plain}};
  command
      .add_option(
          "--fused-layout", plan.fused_layout,
          "How fused layers such as gate_up_proj were sharded, if the shards do not show it: per_rank (each shard "
          "holds a piece of every part, as Megatron and vLLM shard them; the default), plain (as one block, as "
          "transformers' own tensor parallelism shards phi3 and glm)")
      ->transform(one_of(layouts));
  command.add_option(
      "--pattern", plan.pattern,
      "File names of the shards, with {rank} or {tp}, {pp}, {ep} in place of numbers: \"part_{rank}.bin\"");
}

void add_output_options(CLI::App& command, OutputOptions& options) {
  command.add_option("out", options.out, "Directory for the result; created if needed")->required();
  command.add_flag("--force", options.force, "Replace an existing checkpoint: all weights in the directory");
  command.add_flag(
      "--resume", options.resume,
      "Continue from the files that a killed job had finished; files that it had committed are compared and kept");
  command.add_flag("--dry-run", options.dry_run,
                   "Check everything that can be checked, say what would be written, and write nothing");
  command
      .add_option("--explain", options.explain,
                  "Say which shards, which rule and which bytes make up a tensor, and write nothing")
      ->type_name("TENSOR")
      ->allow_extra_args(false);
  command.add_flag("--no-read-back", options.no_read_back, "Do not read back and compare the written files");
}

void add_file_size_options(CLI::App& command, OutputOptions& options) {
  command
      .add_option("--max-shard-size", options.max_shard_bytes,
                  "Bytes of one output file: 5GB (default), 500MB, 2GiB; a larger tensor gets its own file")
      ->transform(size_in_bytes())
      ->type_name("SIZE");
  command.add_flag("--single-file", options.single_file, "Write one file, whatever its size");
}

void add_report_options(CLI::App& command, SessionOptions& options) {
  static std::map<std::string, ProgressStyle> const styles{{"auto", ProgressStyle::automatic},
                                                           {"bar", ProgressStyle::bar},
                                                           {"lines", ProgressStyle::lines},
                                                           {"none", ProgressStyle::none}};
  command.add_flag("--json", options.json, "Print the result as one JSON object");
  command.add_option("--progress", options.progress, "auto (a bar on a terminal, else lines), bar, lines, none")
      ->transform(one_of(styles))
      ->take_last();
}

void add_session_options(CLI::App& command, SessionOptions& options) {
  command.add_option("-n,--processes", options.processes, "Number of processes on this host that share the work")
      ->check(CLI::Range(1, max_processes));
  command
      .add_option("--threads", options.threads,
                  "Threads of each process; by default two per CPU of the process's share, 2 to 4")
      ->check(CLI::Range(1, checkpoint::max_threads));
  add_report_options(command, options);
}

}  // namespace crossrank::tools
