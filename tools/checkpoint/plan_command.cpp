#include "tools/checkpoint/plan_command.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <crossrank/checkpoint/parts.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/checkpoint/checkpoint_report.hpp"
#include "tools/cli/session.hpp"
#include "tools/cli/size_text.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::PartsPlan;

constexpr char const* plan_footer =
    R"(Divides a merge into parts that need no connection with each other, for a scheduler with many hosts. Reads headers and
samples. Makes a hidden folder in the output for the files of the parts, and writes the plan. Each part has whole output
files, and the parts have about the same number of bytes. The result is the one of `crossrank consolidate` with the same
options. Inputs that change after the plan are an error.

Examples:
  crossrank plan /nfs/shards /nfs/model --parts 64 --output /nfs/plan.json
  crossrank consolidate --plan /nfs/plan.json --part 7/64      one part, on any host that sees the files
  sbatch --array=0-63 --wrap "crossrank consolidate --plan /nfs/plan.json"
  crossrank consolidate --plan /nfs/plan.json --finish         publishes the result, or names the missing parts

`crossrank clean --all` removes the parts of a plan that is not wanted any more.

With --json the answer is one JSON object on standard output: command, ok, exit_code, out, output, files, bytes, parts:
[{part, bytes, files: [name]}], plan (as from `crossrank consolidate`) and warnings; or error.

Exit codes:
  0    done
  1    the files are damaged, incomplete, or contradict each other
  2    usage error: an invalid option, or the output exists
  3    the system refused: no such file, no permission, no space
  128+n  ended by signal n (130: Ctrl-C))";

struct PlanRequest {
  std::filesystem::path in{};
  checkpoint::PlanOptions inputs{};
  std::filesystem::path out{};
  std::filesystem::path file{};
  int parts = 1;
  bool force = false;
  OutputOptions sizes{};  ///< only its limits of file sizes
  SessionOptions session{};
};

/// Returns a path as one word of a shell's command line.
std::string shell_word(std::filesystem::path const& path) {
  auto const text = path.string();
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=@%+,-";
  if (text.find_first_not_of(plain) == std::string::npos) return text;
  std::string word = "'";
  for (char const c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

CommandResult describe(PartsPlan const& plan, std::filesystem::path const& file) {
  Json parts = Json::array();
  std::uint64_t bytes = 0;
  std::uint64_t largest = 0;
  std::size_t files = 0;
  for (int part = 0; part < plan.parts(); ++part) {
    auto const names = plan.files(part);
    parts.push_back({{"part", part}, {"bytes", plan.bytes(part)}, {"files", names}});
    bytes += plan.bytes(part);
    largest = std::max(largest, plan.bytes(part));
    files += names.size();
  }
  auto const count = std::to_string(plan.parts());
  auto const command = "crossrank consolidate --plan " + terminal_text(shell_word(file));
  CommandResult result;
  result.text = terminal_text(plan.out().string()) + ": " + size_text(bytes) + " in " + std::to_string(files) +
                (files == 1 ? " file, " : " files, ") + count + (plan.parts() == 1 ? " part" : " parts") +
                " of at most " + size_text(largest) + "\neach part:  " + command + " --part I/" + count +
                "  (I from 0)\nthen:       " + command + " --finish\n";
  result.json = {{"out", plan.out().string()},
                 {"output", file.string()},
                 {"files", files},
                 {"bytes", bytes},
                 {"parts", std::move(parts)},
                 {"plan", plan_json(plan.merge_plan())}};
  return result;
}

CommandResult make_plan(PlanRequest const& request, Session const& session) {
  auto const merge = checkpoint::MergePlan::make(session.world, request.in, request.inputs);
  auto const plan = PartsPlan::make(merge, request.out,
                                    {.parts = request.parts,
                                     .max_shard_bytes = request.sizes.max_shard_bytes,
                                     .single_file = request.sizes.single_file,
                                     .force = request.force});
  plan.save(request.file);
  return describe(plan, request.file);
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<PlanRequest>();
  auto* const command = app.add_subcommand("plan", "Divide a merge into parts for a scheduler");
  add_input_options(*command, request->in, request->inputs, GridOptions::plain);
  command->add_option("out", request->out, "Directory for the result; created if needed")->required();
  command->add_option("--parts", request->parts, "Number of parts")
      ->required()
      ->check(CLI::Range(1, checkpoint::max_parts));
  command->add_option("--output", request->file, "File for the plan; replaced if it exists")
      ->required()
      ->check([](std::string const& name) {
        return name == "-" ? "the parts read the plan from a file, so it cannot go to standard output" : "";
      })
      ->type_name("PLAN.json");
  command->add_flag("--force", request->force,
                    "Replace an existing checkpoint, and drop unfinished parts of another plan");
  add_file_size_options(*command, request->sizes);
  add_report_options(*command, request->session);
  command->footer(plan_footer);
  command->callback([request, &exit_code] {
    exit_code =
        run_alone("plan", request->session, [&](Session const& session) { return make_plan(*request, session); });
  });
}

}  // namespace crossrank::tools
