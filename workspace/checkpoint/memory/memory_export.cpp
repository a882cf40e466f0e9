#include <crossrank/checkpoint/memory_export.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/python_json.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/checkpoint/workers/equal_options.hpp"
#include "workspace/checkpoint/memory/export_plan.hpp"
#include "workspace/checkpoint/memory/export_weights.hpp"
#include "workspace/checkpoint/memory/exchange/exported_source.hpp"
#include "workspace/checkpoint/memory/file_owners.hpp"
#include "workspace/checkpoint/memory/exchange/weight_exchange.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/write/draw_number.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"
#include "workspace/checkpoint/write/separate_output.hpp"
#include "workspace/checkpoint/write/write_checkpoint.hpp"

namespace crossrank::checkpoint {
namespace {

// Each thread has a buffer for a slice, and the exchange needs most of the 256 MiB.
constexpr int max_writers = 4;

/// The files with weights: those of the model first.
struct WeightFiles {
  std::vector<OutputFile> all{};
  std::size_t of_model = 0;

  [[nodiscard]] std::span<OutputFile const> model() const { return std::span(all).first(of_model); }
  [[nodiscard]] std::span<OutputFile const> others() const { return std::span(all).subspan(of_model); }
};

WeightFiles lay_out(std::shared_ptr<ShardSource const> const& source, ShardSet const& set, LayoutOptions layout,
                    ExportExtras const& extras, std::uint64_t writer) {
  if (layout.format == OutputFormat::images)
    return {{lay_out_image(source, corrected_config(set.config, {}), {.writer = writer})}, 1};
  if (extras.prefix.empty()) {
    auto files = lay_out_model(source, layout);
    auto const count = files.size();
    return {std::move(files), count};
  }
  auto const is_other = [&](SourceTensor const& tensor) { return tensor.name.starts_with(extras.prefix); };
  layout.wants = std::not_fn(is_other);
  WeightFiles files{.all = lay_out_model(source, layout)};
  files.of_model = files.all.size();
  auto const tensors = source->tensors();
  if (std::none_of(tensors.begin(), tensors.end(), is_other)) return files;
  layout.wants = is_other;
  layout.stem = extras.stem;
  for (auto& file : lay_out_model(source, layout)) files.all.push_back(std::move(file));
  return files;
}

/// Returns the options that all ranks must share. Each rank lays out the files and checks those that it writes.
NamedOptions shared_options(ExportOptions const& options, ExportExtras const& extras) {
  bool const has_limit = !extras.dcp && options.format != OutputFormat::images;
  NamedOptions shared{
      {"format", extras.dcp ? "dcp" : option_text(options.format)},
      {"single_file", option_text(has_limit && options.single_file)},
      {"max_shard_bytes", std::to_string(has_limit && !options.single_file ? options.max_shard_bytes : 0)},
      {"force", option_text(options.force)},
      {"read_back", option_text(options.read_back)}};
  shared.insert(shared.end(), extras.options.begin(), extras.options.end());
  return shared;
}

/// Everything that the ranks write, and where the bytes of each rank's work come from.
struct Output {
  WeightFiles files{};
  std::shared_ptr<ExportedSource> source{};  ///< of this rank's files
  InputsOf inputs_of{};
  std::string dcp_metadata{};  ///< text of `.metadata`; empty: none
};

Output lay_out_whole(ExportPlan const& plan, LayoutOptions const& layout, ExportExtras const& extras,
                     std::uint64_t writer) {
  Output out{.source = std::make_shared<ExportedSource>(std::make_shared<MergedSource>(plan.layout))};
  out.files = lay_out(out.source, plan.cells.set, layout, extras, writer);
  assign_owners_by_bytes(out.files.all, *plan.layout, plan.cells);
  out.inputs_of = [layout = plan.layout](int, WorkUnit const& unit) {
    return inputs_of(*layout, unit.tensor, unit.offset, unit.bytes);
  };
  return out;
}

Output lay_out_distributed(ExportPlan const& plan, DcpForm const& form) {
  auto made = lay_out_dcp(plan, form);
  Output out{.source = std::move(made.source), .dcp_metadata = std::move(made.metadata)};
  out.files.all = std::move(made.files);
  out.inputs_of = [layout = plan.layout, pieces = std::move(made.pieces)](int rank, WorkUnit const& unit) {
    return inputs_of_piece(*layout, *at_rank(pieces, rank), unit);
  };
  return out;
}

/// Returns the files beside the weights. Only rank 0 needs them.
std::vector<ExtraFile> extras_of(ShardSet const& set, std::span<OutputFile const> files, ExportOptions const& options) {
  ExtraFile index;
  if (files.size() > 1) index = {.name = index_name(options.format), .text = index_text(files)};
  auto extras = extra_files(set, {}, index);
  if (options.model.config.empty()) return extras;
  // The config of the options replaces that of the directory.
  std::erase_if(extras, [](auto const& extra) { return extra.name == "config.json"; });
  extras.push_back({.name = "config.json", .text = codec::to_python_json(corrected_config(set.config, {})) + "\n"});
  return extras;
}

}  // namespace

Summary consolidate(Collective const& world, StateDict const& weights, Placements const& placements,
                    std::filesystem::path const& out, ExportOptions const& options) {
  return export_weights(world, weights, placements, out, options, "consolidate", {});
}

Summary export_weights(Collective const& world, StateDict const& weights, Placements const& placements,
                       std::filesystem::path const& out, ExportOptions const& options, std::string const& operation,
                       ExportExtras const& extras) {
  auto const started = std::chrono::steady_clock::now();
  require_equal_options(world, operation, shared_options(options, extras));
  auto const plan = plan_export(world, weights, placements, options.model, operation);
  auto const number = draw_number(world, operation);
  CROSSRANK_CRASH_POINT("export.planned");
  WriteRequest request{.operation = operation, .out = out, .id = codec::to_hex(number)};
  std::unique_ptr<WeightExchange> exchange;
  agree(world, operation, [&] {
    require_thread_count(operation, options.threads);
    auto output = extras.dcp ? lay_out_distributed(plan, *extras.dcp)
                             : lay_out_whole(plan,
                                             {.max_file_bytes = max_file_bytes(operation, options),
                                              .ranks = world.world_size(),
                                              .format = options.format},
                                             extras, number);
    auto const& files = output.files;
    auto const units = units_of(files.all, world.world_size());
    exchange = std::make_unique<WeightExchange>(plan.cells, units, std::move(output.inputs_of));
    for (auto const& cell : plan.cells.cells) cell->read_from(exchange->received());
    output.source->start(at_rank(units, world.rank()), exchange->received());
    if (world.rank() == 0) {
      if (!options.model.directory.empty() && !extras.may_replace_model)
        require_separate_output(operation, options.model.directory, {}, out);
      if (extras.files) request.extras = extras.files(files.others());
      auto const beside = extras_of(plan.cells.set, files.model(), options);
      request.extras.insert(request.extras.end(), beside.begin(), beside.end());
      // Last, because it makes the files a checkpoint.
      if (extras.dcp) request.extras.push_back({.name = ".metadata", .text = std::move(output.dcp_metadata)});
    }
    request.files = std::move(output.files.all);
  });
  request.force = options.force;
  request.read_back = options.read_back;
  request.threads = std::min(options.threads, max_writers);
  request.on_progress = options.on_progress;
  request.stop = options.stop;
  request.exchange = exchange.get();
  auto summary = write_checkpoint(world, request);
  summary.elapsed = std::chrono::steady_clock::now() - started;
  return summary;
}

}  // namespace crossrank::checkpoint
