#include "tools/checkpoint/verify_command.hpp"

#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <crossrank/checkpoint.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/checkpoint/checkpoint_options.hpp"
#include "tools/cli/session.hpp"
#include "tools/cli/size_text.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* verify_footer =
    R"(Reports all defects of shards or of a whole checkpoint in one run:
  files that are damaged or truncated, and an index that contradicts its files
  missing ranks, parts, layers, experts and matrices, and layers that the config does not have
  shards that do not add up to the config, and embeddings with fewer rows than the config has tokens
  scales that are missing, not above zero, NaN or infinite, or that do not fit their weights; in integer
    formats, one of several scales may be zero or negative
  replicas, and scales of weights, that differ between ranks
  data that does not match its checksums

Checksums are those of crossrank's own files and, without --crc ignore, those of torch archives and distributed
checkpoints. Scale tensors of more than 64 KiB are read only with --numbers. That option reads all data and finds NaN
and infinities in all tensors.

Examples:
  crossrank verify model/
  crossrank verify shards/ --numbers -n 4
  crossrank verify model.pth --crc ignore
  crossrank verify model/ --json | jq '.defects[].text'

With --json the answer is one JSON object on standard output: command, ok, exit_code, files, tensors, bytes, bytes_read,
defects: [{kind, resource, text, hint}] and warnings; or error, as from the other commands. The kinds are file, index,
coverage, shape, replicas, scales, checksum and numbers.

Exit codes:
  0    no defect
  1    defects, each on a line of its own; a shard that cannot be read is one of them
  2    usage error
  3    the system refused the input itself: no such file, no permission
  4    a rank was lost
  128+n  ended by signal n)";

struct Request {
  std::filesystem::path in{};
  checkpoint::PlanOptions plan{};
  checkpoint::VerifyOptions options{};
  bool no_checksums = false;
  SessionOptions session{};
};

CommandResult answer_of(checkpoint::VerifyReport const& report, std::filesystem::path const& path) {
  CommandResult answer;
  Json defects = Json::array();
  std::map<std::string, std::size_t> kinds;
  for (auto const& defect : report.defects) {
    std::string const kind = checkpoint::to_string(defect.kind);
    ++kinds[kind];
    answer.text += kind + ": " + terminal_text(defect.resource) + ": " + terminal_text(defect.text) + "\n";
    if (!defect.hint.empty()) answer.text += "  " + terminal_text(defect.hint) + "\n";
    defects.push_back({{"kind", kind}, {"resource", defect.resource}, {"text", defect.text}, {"hint", defect.hint}});
  }
  answer.text += terminal_text(path.string()) + ": " + std::to_string(report.files) +
                 (report.files == 1 ? " file, " : " files, ") + std::to_string(report.tensors) + " tensors, " +
                 size_text(report.bytes) + ": ";
  if (report.ok()) {
    answer.text += "no defect found";
  } else {
    answer.text += std::to_string(report.defects.size()) + (report.defects.size() == 1 ? " defect" : " defects");
    std::string list;
    for (auto const& [kind, count] : kinds) list += (list.empty() ? "" : ", ") + kind + " " + std::to_string(count);
    answer.text += " (" + list + ")";
  }
  answer.text += report.bytes_read > 0 ? ", " + size_text(report.bytes_read) + " of data read\n" : "\n";
  answer.json = {{"files", report.files},
                 {"tensors", report.tensors},
                 {"bytes", report.bytes},
                 {"bytes_read", report.bytes_read},
                 {"defects", std::move(defects)}};
  answer.exit_code = report.ok() ? 0 : 1;
  return answer;
}

CommandResult verify(Request const& request, Session const& session) {
  auto options = request.options;
  options.checksums = !request.no_checksums;
  options.threads = request.session.threads;
  options.stop = session.stop;
  options.on_progress = [&](auto const& progress) { session.progress.show(progress); };
  return answer_of(checkpoint::verify(session.world, request.in, request.plan, options), request.in);
}

}  // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<Request>();
  auto* const command = app.add_subcommand("verify", "Find everything that is wrong with shards or a checkpoint");
  add_input_options(*command, request->in, request->plan, GridOptions::plain);
  command->add_flag("--numbers", request->options.numbers, "Read all data and look for NaN and infinities");
  command->add_flag("--no-checksums", request->no_checksums, "Do not read the data of files that have checksums");
  add_session_options(*command, request->session);
  command->footer(verify_footer);
  command->callback([request, &exit_code] {
    exit_code =
        run_session("verify", request->session, [&](Session const& session) { return verify(*request, session); });
  });
}

}  // namespace crossrank::tools
