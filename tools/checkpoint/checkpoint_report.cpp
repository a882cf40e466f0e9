#include "tools/checkpoint/checkpoint_report.hpp"

#include <algorithm>
#include <map>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/text/terminal_text.hpp"
#include "tools/cli/size_text.hpp"
#include "workspace/checkpoint/write/output_request.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/plan/split_source.hpp"

namespace crossrank::tools {
namespace {

using checkpoint::MergePlan;

std::string count_text(std::size_t count, std::string const& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string grid_text(checkpoint::ShardSet const& set) {
  auto text = count_text(set.sources.size(), "source");
  if (set.tp > 1) text += ", tensor parallel " + std::to_string(set.tp);
  if (set.pp > 1) text += ", pipeline " + std::to_string(set.pp);
  if (set.ep > 1) text += ", expert parallel " + std::to_string(set.ep);
  return text;
}

/// Returns one line for each bound of requantized tensors and one for each dropped tensor.
std::string notes(MergePlan const& plan) {
  std::map<std::string, std::size_t> bounds;
  for (auto const& changed : plan.requantized()) ++bounds[changed.bound];
  std::string text;
  for (auto const& [bound, count] : bounds)
    text += "requantized " + count_text(count, "tensor") + ": " + terminal_text(bound) + "\n";
  for (auto const& dropped : plan.state().layout->dropped)
    text += "left out " + terminal_text(dropped.name) + ": " + terminal_text(dropped.reason) + "\n";
  return text;
}

/// Describes the part of a tensor that goes to `file`, the shard of one rank.
std::string shard_text(checkpoint::OutputFile const& file, std::string const& name) {
  auto const& tensors = file.source->tensors();
  auto const found =
      std::find_if(tensors.begin(), tensors.end(), [&](auto const& tensor) { return tensor.name == name; });
  if (found == tensors.end()) return "  " + file.name + ": no part of it\n";
  auto const* const split = dynamic_cast<checkpoint::SplitSource const*>(file.source.get());
  return "  " + file.name + ": " + std::string(name_of(found->dtype)) + " " + to_string(found->shape) + "\n" +
         (split != nullptr ? split->explain(as_size(found - tensors.begin())) : std::string());
}

/// Explains each tensor, followed by `more(name)`.
template <class More>
CommandResult explained(MergePlan const& plan, std::vector<std::string> const& tensors, More const& more) {
  CommandResult answer;
  answer.json["explain"] = Json::object();
  for (auto const& name : tensors) {
    auto const text = plan.explain(name) + more(name);
    answer.text += text;
    answer.json["explain"][name] = text;
  }
  return answer;
}

}  // namespace

Json plan_json(MergePlan const& plan) {
  auto const& set = plan.state().layout->set;
  Json requantized = Json::array();
  for (auto const& changed : plan.requantized())
    requantized.push_back({{"tensor", changed.tensor}, {"bound", changed.bound}});
  Json dropped = Json::array();
  for (auto const& tensor : plan.state().layout->dropped)
    dropped.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  return {{"hash", codec::to_hex(plan.hash())},
          {"sources", set.sources.size()},
          {"tp", set.tp},
          {"pp", set.pp},
          {"ep", set.ep},
          {"tensors", plan.tensors().size()},
          {"bytes", plan.bytes()},
          {"requantized", std::move(requantized)},
          {"dropped", std::move(dropped)}};
}

CommandResult explain_tensors(MergePlan const& plan, std::vector<std::string> const& tensors) {
  return explained(plan, tensors, [](auto const&) { return std::string(); });
}

CommandResult explain_shards(MergePlan const& plan, checkpoint::WriteRequest const& request,
                             std::vector<std::string> const& tensors) {
  return explained(plan, tensors, [&](std::string const& name) {
    std::string text;
    for (auto const& file : request.files) text += shard_text(file, name);
    return text;
  });
}

CommandResult describe_request(MergePlan const& plan, checkpoint::WriteRequest const& request) {
  checkpoint::check_output(request);
  auto const& set = plan.state().layout->set;
  CommandResult answer;
  Json files = Json::array();
  std::uint64_t bytes = 0;
  for (auto const& file : request.files) bytes += file.bytes;
  answer.text = "read  " + grid_text(set) + ", " + count_text(plan.tensors().size(), "tensor") + ", " +
                size_text(plan.bytes()) + "\n" + "write " + terminal_text(request.out.string()) + ", " +
                count_text(request.files.size(), "file") + ", " + size_text(bytes) + "\n";
  for (auto const& file : request.files) {
    answer.text +=
        "  " + file.name + "  " + size_text(file.bytes) + ", " + count_text(file.tensors.size(), "tensor") + "\n";
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"tensors", file.tensors.size()}, {"rank", file.owner}});
  }
  for (auto const& extra : request.extras) {
    bool const copied = !extra.copy_of.empty();
    answer.text += "  " + terminal_text(extra.name) + (copied ? "  copied\n" : "  written\n");
    files.push_back({{"name", extra.name}, {"copied", copied}});
  }
  answer.text += notes(plan) + "dry run: nothing was written\n";
  answer.json = {
      {"dry_run", true}, {"out", request.out.string()}, {"plan", plan_json(plan)}, {"files", std::move(files)}};
  return answer;
}

CommandResult describe_summary(MergePlan const& plan, checkpoint::Summary const& summary, OutputOptions const& output) {
  CommandResult answer;
  auto const seconds = summary.elapsed.count();
  auto const rate = static_cast<double>(summary.bytes) / std::max(seconds, 1e-6);
  answer.text = notes(plan) + terminal_text(output.out.string()) + ": " + size_text(summary.bytes) + " in " +
                count_text(as_size(summary.files), "file") + " from " + grid_text(plan.state().layout->set) + ", in " +
                seconds_text(seconds) + " (" + size_text(static_cast<std::uint64_t>(rate)) + "/s)" +
                (output.no_read_back ? "" : ", read back and compared") + "\n";
  if (summary.resumed_files > 0)
    answer.text += count_text(as_size(summary.resumed_files), "file") + " reused from an earlier job\n";
  answer.json = {{"out", output.out.string()}, {"bytes", summary.bytes},
                 {"files", summary.files},     {"resumed_files", summary.resumed_files},
                 {"seconds", seconds},         {"plan", plan_json(plan)}};
  return answer;
}

}  // namespace crossrank::tools
