#include "workspace/checkpoint/write/output_request.hpp"

#include <memory>
#include <optional>
#include <string>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/write/job/job_folder.hpp"
#include "workspace/checkpoint/write/written_result.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/write/separate_output.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/source/shard_metadata.hpp"
#include "workspace/checkpoint/plan/split_source.hpp"

namespace crossrank::checkpoint {
namespace {

template <class Options>
void take_options(WriteRequest& request, Options const& options) {
  require_thread_count(request.operation, options.threads);
  request.force = options.force;
  request.resume = options.resume;
  request.can_resume = true;
  request.read_back = options.read_back;
  request.threads = options.threads;
  request.on_progress = options.on_progress;
  request.stop = options.stop;
}

std::string format_text(OutputFormat format) { return " format " + std::to_string(static_cast<int>(format)); }

/// Returns the writer number in the names of state images. It is the same for the same job, so that the job can resume.
std::uint64_t writer_of(std::string const& job) { return codec::checksum(std::as_bytes(std::span(job))); }

OutputFile rank_file(std::shared_ptr<ShardSource const> const& source, int rank, SplitOptions const& options,
                     std::string const& job, Json const& config) {
  if (options.format == OutputFormat::images) {
    return lay_out_image(source, corrected_config(config, {.tp = options.tp, .moe_ep = options.moe_ep}),
                         {.rank = rank, .world_size = options.tp, .writer = writer_of(job)});
  }
  auto const* const ending = options.format == OutputFormat::torch ? ".pth" : ".safetensors";
  return lay_out_file(source, "rank" + std::to_string(rank) + ending, options.format,
                      to_header_metadata({.rank = rank, .count = options.tp, .job = job}));
}

}  // namespace

WriteRequest consolidate_request(MergePlan const& plan, std::filesystem::path const& out,
                                 ConsolidateOptions const& options, int ranks) {
  auto const& state = plan.state();
  WriteRequest request{.operation = "consolidate", .out = out};
  take_options(request, options);
  require_separate_output(request.operation, state.shards, state.layout->set.files, out);
  auto const& source = state.merged;
  auto const limit = max_file_bytes(request.operation, options);
  request.id = job_id(state, "consolidate " + std::to_string(limit) + format_text(options.format));
  if (options.format == OutputFormat::images) {
    auto const config = corrected_config(state.layout->set.config, {});
    request.files.push_back(lay_out_image(source, config, {.writer = writer_of(request.id)}));
  } else {
    request.files = lay_out_model(source, {.max_file_bytes = limit, .ranks = ranks, .format = options.format});
  }
  ExtraFile index;
  if (request.files.size() > 1) index = {.name = index_name(options.format), .text = index_text(request.files)};
  request.extras = extra_files(state.layout->set, {}, index);
  request.inputs = state.layout->set.files;
  return request;
}

WriteRequest split_request(MergePlan const& plan, std::filesystem::path const& out, SplitOptions const& options,
                           int ranks) {
  auto const& state = plan.state();
  WriteRequest request{.operation = "split", .out = out};
  take_options(request, options);
  require_separate_output(request.operation, state.shards, state.layout->set.files, out);
  require_at_least(1, request.operation, "tp", options.tp);
  if (options.moe_ep < 1 || options.tp % options.moe_ep != 0) {
    throw UsageError({.operation = request.operation,
                      .message = "the number of expert groups does not divide the number of ranks",
                      .expected = "a divisor of " + std::to_string(options.tp),
                      .got = std::to_string(options.moe_ep),
                      .hint = "leave `moe_ep` of the result at 1 if each rank is to hold a slice of every expert"});
  }
  auto const set = as_whole(state.layout);
  auto const& rules = options.rules.empty() ? state.options.rules : options.rules;
  std::optional<std::filesystem::path> rule_file;
  if (!rules.empty()) rule_file = rules;
  auto const rule_set = RuleSet::make(set, rule_file);
  auto const split_rule_for = [&](SourceTensor const& whole) {
    return rule_set.split_for(whole.name, whole, options.tp, options.moe_ep);
  };
  auto const text = rule_set.to_json().dump(-1, ' ', false, Json::error_handler_t::replace);
  request.id = job_id(state, "split " + std::to_string(options.tp) + " " + std::to_string(options.moe_ep) +
                                 format_text(options.format) + text);
  for (int rank = 0; rank < options.tp; ++rank) {
    auto const source = std::make_shared<SplitSource>(set.sources.front(), as_size(rank), split_rule_for);
    request.files.push_back(rank_file(source, rank, options, request.id, set.config));
  }
  assign_owners(request.files, ranks);
  request.inputs = state.layout->set.files;
  request.extras = extra_files(state.layout->set, {.tp = options.tp, .moe_ep = options.moe_ep}, {});
  return request;
}

void check_output(WriteRequest const& request) {
  if (!WrittenResult::find(request)) JobFolder::check(job_request(request));
}

}  // namespace crossrank::checkpoint
