#include "tools/checkpoint/parts_options.hpp"

#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/error.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/cli/session.hpp"
#include "tools/cli/size_text.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::PartsPlan;

/// Parses a number that ends at `end`.
bool parse(char const* begin, char const* end, int& number) {
  auto const [stop, error] = std::from_chars(begin, end, number);
  return error == std::errc{} && stop == end && begin != end;
}

/// Returns the part that "I" or "I/N" names.
int part_from(std::string const& text, int parts) {
  int part = 0;
  int count = parts;
  auto const slash = text.find('/');
  auto const* const end = text.data() + text.size();
  bool const valid = slash == std::string::npos
                         ? parse(text.data(), end, part)
                         : parse(text.data(), text.data() + slash, part) && parse(text.data() + slash + 1, end, count);
  if (!valid) {
    throw UsageError({.operation = "consolidate",
                      .message = "the part is not a number",
                      .expected = "--part I or --part I/N",
                      .got = text});
  }
  if (count != parts) {
    throw UsageError({.operation = "consolidate",
                      .message = "the plan has another number of parts",
                      .expected = std::to_string(parts),
                      .got = text,
                      .hint = "give the number that the plan was made with"});
  }
  return part;
}

std::string summary_text(checkpoint::Summary const& summary) {
  return size_text(summary.bytes) + " in " + std::to_string(summary.files) + (summary.files == 1 ? " file" : " files") +
         ", in " + seconds_text(summary.elapsed.count());
}

Json summary_json(PartsPlan const& plan, checkpoint::Summary const& summary) {
  return {{"out", plan.out().string()},
          {"parts", plan.parts()},
          {"bytes", summary.bytes},
          {"files", summary.files},
          {"resumed_files", summary.resumed_files},
          {"seconds", summary.elapsed.count()}};
}

CommandResult run_part(PartsPlan const& plan, PartsRequest const& parts, CheckpointRequest const& request,
                       Session const& session) {
  int const part = parts.part ? part_from(*parts.part, plan.parts()) : checkpoint::part_from_environment(plan);
  checkpoint::PartOptions options{
      .on_progress = [&session](auto const& progress) { session.progress.show(progress); },
      .stop = session.stop,
      .read_back = request.output.no_read_back ? checkpoint::ReadBack::none : checkpoint::ReadBack::all,
      .threads = request.session.threads};
  auto const summary = checkpoint::consolidate_part(plan, part, options);
  CommandResult result{.json = summary_json(plan, summary)};
  result.text =
      "part " + std::to_string(part) + " of " + std::to_string(plan.parts()) + ": " + summary_text(summary) + "\n";
  if (summary.resumed_files > 0)
    result.text += std::to_string(summary.resumed_files) + " of the files had been written before\n";
  result.json["part"] = part;
  return result;
}

/// Says which parts are missing.
CommandResult report_missing(PartsPlan const& plan, std::vector<int> const& missing) {
  CommandResult result;
  for (auto const part : missing) result.text += "part " + std::to_string(part) + " is missing\n";
  result.text += std::to_string(missing.size()) + " of " + std::to_string(plan.parts()) +
                 " parts are missing; dry run: nothing was published\n";
  result.json = {{"dry_run", true}, {"out", plan.out().string()}, {"parts", plan.parts()}, {"missing", missing}};
  result.exit_code = missing.empty() ? 0 : 1;
  return result;
}

CommandResult finish(PartsPlan const& plan, PartsRequest const& parts, CheckpointRequest const& request,
                     Session const& session) {
  bool const dry_run = request.output.dry_run;
  auto const missing = dry_run ? plan.missing() : std::vector<int>();
  if (!missing.empty()) return report_missing(plan, missing);
  checkpoint::FinishOptions options{
      .force = request.output.force,
      .dry_run = dry_run,
      .on_progress = [&session](auto const& progress) { session.progress.show(progress); },
      .stop = session.stop,
      .threads = request.session.threads};
  if (parts.read_back) options.check = checkpoint::PartCheck::all;
  if (request.output.no_read_back) options.check = checkpoint::PartCheck::none;
  auto const summary = checkpoint::finish_parts(plan, options);
  if (dry_run) return report_missing(plan, missing);
  return {.text = terminal_text(plan.out().string()) + ": published " + summary_text(summary) + "\n",
          .json = summary_json(plan, summary)};
}

}  // namespace

void add_parts_options(CLI::App& command, PartsRequest& parts) {
  command.add_option("--plan", parts.plan, "Plan that `crossrank plan` wrote: run one part of it, or --finish it")
      ->type_name("PLAN.json");
  command
      .add_option("--part", parts.part,
                  "With --plan: the part to write, from 0; by default the task of a Slurm array, the index of a "
                  "Kubernetes Job, or RANK of torchrun")
      ->type_name("I[/N]");
  command.add_flag("--finish", parts.finish,
                   "With --plan: check that the size and time of each file match the record of its part, and publish "
                   "the result");
  command.add_flag("--read-back", parts.read_back,
                   "With --finish: read all files again and compare them. Otherwise only files that were modified "
                   "since their part read them back, or that it did not read back");
}

bool has_plan(CLI::App const& command) { return command.get_option("--plan")->count() > 0; }

void check_parts_options(CLI::App const& command, PartsRequest const& parts) {
  if (!has_plan(command)) {
    for (auto const* const name : {"--part", "--finish", "--read-back"}) {
      if (command.get_option(name)->count() > 0) throw CLI::RequiresError(name, "--plan");
    }
    for (auto const* const name : {"shards", "out"}) {
      if (command.get_option(name)->count() == 0) throw CLI::RequiredError(name);
    }
    return;
  }
  if (parts.plan.empty()) throw CLI::ValidationError("--plan", "the name of the plan is empty");
  static std::set<std::string> const combined{"--plan",         "--part",    "--finish", "--read-back", "--resume",
                                              "--no-read-back", "--threads", "--json",   "--progress"};
  static std::set<std::string> const with_finish{"--force", "--dry-run"};
  for (auto const* const option : command.get_options()) {
    auto const name = option->get_name();
    if (option->count() == 0 || combined.contains(name)) continue;
    if (!with_finish.contains(name)) throw CLI::ExcludesError("--plan", name);
    if (!parts.finish) throw CLI::RequiresError(name, "--finish");
  }
  if (parts.finish && parts.part) throw CLI::ExcludesError("--finish", "--part");
  if (parts.read_back && !parts.finish) throw CLI::RequiresError("--read-back", "--finish");
  if (parts.read_back && command.get_option("--no-read-back")->count() > 0)
    throw CLI::ExcludesError("--read-back", "--no-read-back");
}

int run_parts(PartsRequest const& parts, CheckpointRequest const& request) {
  return run_alone("consolidate", request.session, [&](Session const& session) {
    auto const plan = PartsPlan::load(parts.plan);
    return parts.finish ? finish(plan, parts, request, session) : run_part(plan, parts, request, session);
  });
}

}  // namespace crossrank::tools
