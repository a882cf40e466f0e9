#include <crossrank/checkpoint.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/log.hpp"
#include "lib/core/nearest_name.hpp"
#include "lib/core/terminal_text.hpp"
#include "lib/platform/atomic_file.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/checkpoint/plan/check_model.hpp"
#include "workspace/checkpoint/plan/check_layers.hpp"
#include "workspace/checkpoint/model/list_text.hpp"
#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/model/model_names.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/rules/rule_set/unused_rules.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* format_name = "crossrank merge plan";

std::string base_name(std::string const& path) { return std::filesystem::path(path).filename().string(); }

char const* kind_name(MergeKind kind) {
  switch (kind) {
    case MergeKind::replicate: return "replicate";
    case MergeKind::concat: return "concat";
    case MergeKind::reduce: return "reduce";
    case MergeKind::requantize: return "requantize";
    case MergeKind::given: return "given";
  }
  return "unknown";
}

char const* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return "min";
    case ReduceOp::avg: return "avg";
    case ReduceOp::sum: return "sum";
    default: return "max";
  }
}

Json rule_json(MergedTensor const& tensor) {
  auto const& rule = tensor.rule;
  Json out{{"kind", kind_name(rule.kind)}};
  if (rule.kind == MergeKind::concat) {
    out["axis"] = rule.axis;
    if (!rule.parts.empty()) out["parts"] = rule.parts;
    if (rule.replicas > 1) out["replicas"] = rule.replicas;
    if (!rule.part_replicas.empty()) out["part_replicas"] = rule.part_replicas;
    if (rule.rank_block > 0) out["rank_block"] = rule.rank_block;
    if (rule.only_part >= 0) out["only_part"] = rule.only_part;
    if (rule.assumed_layout) out["layout"] = "per_rank, assumed";
    if (rule.true_size >= 0) out["true_size"] = rule.true_size;
    if (rule.add_per_rank != 0) out["add_per_rank"] = rule.add_per_rank;
  }
  if (rule.kind == MergeKind::reduce) out["op"] = op_name(rule.op);
  if (rule.ep_axis >= 0) out["ep_axis"] = rule.ep_axis;
  if (rule.given) out["values"] = codec::to_hex(codec::checksum(rule.given->bytes));
  if (!tensor.changes.empty()) {
    out["changes"] = Json::array();
    for (auto const& change : tensor.changes) out["changes"].push_back(change->to_json());
  }
  if (!rule.reason.empty()) out["reason"] = rule.reason;
  return out;
}

Json tensor_json(MergedTensor const& tensor) {
  Json shape = Json::array();
  for (auto const length : tensor.shape) shape.push_back(length);
  Json from = Json::array();
  for (auto const& input : tensor.inputs) from.push_back({input.source, input.tensor});
  return {{"name", tensor.name},
          {"dtype", name_of(tensor.dtype)},
          {"shape", std::move(shape)},
          {"rule", rule_json(tensor)},
          {"from", std::move(from)}};
}

/// Everything that decides about the result; paths by their last element, as ranks may mount them elsewhere.
Json substance(MergeLayout const& model, Json const& rules) {
  Json sources = Json::array();
  for (std::size_t i = 0; i < model.set.sources.size(); ++i) {
    auto const& place = model.set.places[i];
    sources.push_back({{"name", base_name(model.set.sources[i]->name())},
                       {"bytes", model.set.sources[i]->bytes_on_disk()},
                       {"tp", place.tp},
                       {"pp", place.pp},
                       {"ep", place.ep}});
  }
  Json tensors = Json::array();
  for (auto const& tensor : model.tensors) tensors.push_back(tensor_json(tensor));
  Json dropped = Json::array();
  for (auto const& tensor : model.dropped) dropped.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  return {{"grid", {{"tp", model.set.tp}, {"pp", model.set.pp}, {"ep", model.set.ep}}},
          {"bytes", model.bytes},
          {"sources", std::move(sources)},
          {"rules", rules},
          {"tensors", std::move(tensors)},
          {"dropped", std::move(dropped)}};
}

std::uint64_t hash_of(Json const& value) {
  auto const text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return codec::checksum(std::as_bytes(std::span(text)));
}

MergeLayout merge_all(ShardSet const& set, RuleSet const& rule_set) {
  try {
    bool const alone = set.sources.size() == 1;
    return lay_out_merge(set, [&](std::string_view name, std::span<SourceTensor const* const> tensors) {
      return alone ? rule_set.rule_for_single_source(*tensors.front()) : rule_set.rule_for(name, tensors);
    });
  } catch (FormatError const& error) {
    if (error.section() == missing_ranks_section) throw missing_ranks(set, error);
    throw;
  }
}

std::vector<std::string> names_of(MergeLayout const& model) {
  std::vector<std::string> names;
  for (auto const& tensor : model.tensors) names.push_back(tensor.name);
  return names;
}

/// A model may be made so, or was saved with a part left out: only its user knows.
void warn_of_missing_tensors(MergePlan::State const& state) {
  auto const& model = *state.model;
  auto const names = names_of(model);
  auto findings = check_missing_tensors(names);
  auto const add = [&](std::vector<Defect> more) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  auto const config = state.rules.find("config");
  add(check_vocabulary(model.tensors, ModelSizes(config != state.rules.end() ? *config : model.set.config)));
  // What a serving program saved may be fused by it alone.
  bool const served = base_name(model.set.sources.front()->name()).starts_with("model-rank-");
  if (served) add(check_fused_layers(names, model.set.config));
  add(check_stacked_layers(names));
  add(ModelNames(model.set.config).check(names, state.shards.string()));
  for (auto const& finding : findings) log_event(LogLevel::warning, finding.text, {{"tensor", finding.resource}});
}

/// What was taken for granted and would give another model if it were not so.
void warn_of_assumptions(MergeLayout const& model) {
  auto const found = std::find_if(model.tensors.begin(), model.tensors.end(),
                                  [](auto const& tensor) { return tensor.rule.assumed_layout; });
  if (found == model.tensors.end()) return;
  log_event(LogLevel::warning,
            "fused layers were taken as cut part by part (`fused_layout` per_rank); nothing says so, and transformers' "
            "own tensor parallelism cuts them as one block: `fused_layout` plain merges such shards",
            {{"tensor", found->name}});
}

/// A rule that does nothing is one that was meant for something else.
void warn_of_unused_rules(MergePlan::State const& state) {
  if (state.options.rules.empty()) return;
  auto const& set = state.model->set;
  for (auto const& text : unused_rules(RuleFile::read(state.options.rules), set, ModelSizes(set.config).model_type()))
    log_event(LogLevel::warning, text, {{"file", state.options.rules.string()}});
}

/// A stage or expert rank that is missing as a whole leaves a hole in the numbers of layers or experts.
void require_coverage(MergeLayout const& model, Json const& config, std::string const& where) {
  for (auto const& gap : find_gaps(names_of(model), config)) {
    if (!gap.wanted || gap.missing.empty()) continue;
    throw FormatError({.operation = plan_operation,
                       .message = gap.text(),
                       .expected = std::to_string(*gap.wanted) + " by the config",
                       .resource = where,
                       .hint = "copy the missing shards there, or correct the config; `rules` with {\"sizes\": ...} "
                               "gives other numbers than the config's",
                       .section = "coverage"});
  }
}

/// What an index lists is part of the model.
void require_listed(ShardSet const& set, std::string const& where) {
  if (set.absent.empty()) return;
  throw FormatError({.operation = plan_operation,
                     .message = "the index lists a tensor that is in none of its files: " + set.absent.front(),
                     .got = std::to_string(set.absent.size()) + " such tensors",
                     .resource = where,
                     .hint = "a file is of another save: copy it anew; or remove the index, if that is what is wrong",
                     .details = set.absent,
                     .section = "coverage"});
}

std::shared_ptr<MergePlan::State> make_state(std::filesystem::path const& shards, PlanOptions const& options) {
  auto state = std::make_shared<MergePlan::State>();
  state->shards = shards;
  state->options = options;
  require_no_other_ranks(shards);
  auto set = open_shard_set(shards, {.tp = options.tp,
                                     .pp = options.pp,
                                     .ep = options.ep,
                                     .moe_ep = options.moe_ep,
                                     .fused = options.fused_layout,
                                     .pattern = options.pattern,
                                     .crc = crc_policy(options.crc),
                                     .model_key = options.model_key,
                                     .extra_globals = options.extra_globals});
  require_listed(set, shards.string());
  std::optional<std::filesystem::path> rule_file;
  if (!options.rules.empty()) rule_file = options.rules;
  auto sizes = set.config;
  if (!rule_file) {
    if (auto const error = check_single_shard(set)) throw FormatError(*error);
  }
  if (set.sources.size() > 1 || rule_file || RuleSet::changes_single_source(set)) {
    auto const rule_set = RuleSet::make(set, rule_file, options.policy);
    state->rules = rule_set.to_json();
    sizes = state->rules.at("config");
    state->model = std::make_shared<MergeLayout const>(merge_all(set, rule_set));
  } else {
    state->model = std::make_shared<MergeLayout const>(lay_out_merge(std::move(set), {}));
  }
  require_coverage(*state->model, sizes, shards.string());
  state->hash = hash_of(substance(*state->model, state->rules));
  return state;
}

void require_same(Collective const& world, MergePlan::State const& state) {
  auto const all = world.all_gatherv(std::as_bytes(std::span(&state.hash, 1)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError({.operation = plan_operation,
                         .message = "ranks 0 and " + std::to_string(rank) + " see different shards or rules",
                         .resource = state.shards.string(),
                         .hint = "give all ranks the same files, on a file system that they share",
                         .rank = world.rank(),
                         .world_size = world.world_size(),
                         .failed_ranks = {static_cast<int>(rank)}});
  }
}

MergePlan::State const& require(std::shared_ptr<MergePlan::State const> const& state) {
  if (!state) throw UsageError({.operation = plan_operation, .message = "this is no plan: make one first"});
  return *state;
}

MergedTensor const& find_tensor(MergeLayout const& model, std::string_view name) {
  auto const found =
      std::find_if(model.tensors.begin(), model.tensors.end(), [&](auto const& tensor) { return tensor.name == name; });
  if (found != model.tensors.end()) return *found;
  auto const names = names_of(model);
  auto const near = nearest_name(name, names);
  throw UsageError({.operation = plan_operation,
                    .message = "there is no tensor \"" + std::string(name) + "\" in the result",
                    .got = std::to_string(names.size()) + " others",
                    .hint = near ? "did you mean " + *near + "?" : "`crossrank inspect` lists them"});
}

std::string input_runs_text(MergeLayout const& model, InputRuns const& piece) {
  char text[200];
  auto const& source = *model.set.sources[piece.from.source];
  std::snprintf(text, sizeof text, "  %llu x %llu bytes from byte %llu (every %llu) to byte %llu (every %llu) of ",
                static_cast<unsigned long long>(piece.rows), static_cast<unsigned long long>(piece.run),
                static_cast<unsigned long long>(piece.from_at), static_cast<unsigned long long>(piece.from_stride),
                static_cast<unsigned long long>(piece.to_at), static_cast<unsigned long long>(piece.to_stride));
  auto const files = list_text(source.files_of(piece.from.tensor), 4);
  return text + terminal_text(files + " : " + source.tensors()[piece.from.tensor].name) + "\n";
}

}  // namespace

MergePlan MergePlan::make(Collective const& world, std::filesystem::path const& shards, PlanOptions const& options) {
  std::shared_ptr<State> state;
  agree(world, plan_operation, [&] { state = make_state(shards, options); });
  require_same(world, *state);
  if (world.rank() == 0) {
    warn_of_missing_tensors(*state);
    warn_of_assumptions(*state->model);
    warn_of_unused_rules(*state);
  }
  return MergePlan(std::move(state));
}

MergePlan MergePlan::load(Collective const& world, std::filesystem::path const& file) {
  Json saved;
  agree(world, plan_operation, [&] {
    auto const found = read_json_object(file, codec::listing_limits);
    if (!found || found->value("format", std::string()) != format_name || !found->contains("inputs")) {
      throw FormatError({.operation = plan_operation,
                         .message = found ? "this is no merge plan" : "there is no such file",
                         .resource = file.string(),
                         .hint = "give a file that MergePlan::save wrote",
                         .section = "json"});
    }
    saved = *found;
  });
  auto const& inputs = saved.at("inputs");
  auto plan = make(world, inputs.value("path", std::string()),
                   {.rules = inputs.value("rules", std::string()),
                    .tp = inputs.value("tp", 0),
                    .pp = inputs.value("pp", 0),
                    .ep = inputs.value("ep", 0),
                    .pattern = inputs.value("pattern", std::string()),
                    .policy = static_cast<ScalePolicy>(std::clamp(inputs.value("policy", 0), 0, 2)),
                    .crc = static_cast<ArchiveCrc>(std::clamp(inputs.value("crc", 0), 0, 2)),
                    .extra_globals = inputs.value("extra_globals", std::vector<std::string>()),
                    .model_key = inputs.value("model_key", std::string()),
                    .moe_ep = inputs.value("moe_ep", 0),
                    .fused_layout = static_cast<FusedLayout>(std::clamp(inputs.value("fused_layout", 0), 0, 2))});
  auto const wanted = saved.value("hash", std::string());
  if (codec::to_hex(plan.hash()) != wanted) {
    throw FormatError({.operation = plan_operation,
                       .message = "the inputs or rules are no longer those of the plan",
                       .expected = wanted,
                       .got = codec::to_hex(plan.hash()),
                       .resource = file.string(),
                       .hint = "make a new plan",
                       .section = "hash"});
  }
  return plan;
}

std::uint64_t MergePlan::hash() const { return require(state_).hash; }
std::uint64_t MergePlan::bytes() const { return require(state_).model->bytes; }
MergePlan::State const& MergePlan::state() const { return require(state_); }

std::vector<Requantized> MergePlan::requantized() const {
  std::vector<Requantized> changed;
  for (auto const& tensor : require(state_).model->tensors) {
    for (auto const& change : tensor.changes) changed.push_back({tensor.name, change->bound()});
  }
  return changed;
}

std::vector<std::string> MergePlan::tensors() const {
  std::vector<std::string> names;
  for (auto const& tensor : require(state_).model->tensors) names.push_back(tensor.name);
  return names;
}

std::string MergePlan::explain(std::string_view name) const {
  auto const& model = *require(state_).model;
  for (auto const& dropped : model.dropped) {
    if (dropped.name == name) return terminal_text(dropped.name + ": left out: " + dropped.reason) + "\n";
  }
  auto const& tensor = find_tensor(model, name);
  auto text = terminal_text(tensor.name) + ": " + std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape) +
              ", " + std::to_string(tensor.bytes) + " bytes\n" +
              "rule: " + terminal_text(rule_json(tensor).dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
  for (auto const& piece : tensor.pieces) text += input_runs_text(model, piece);
  for (auto const& change : tensor.changes) text += "  requantized: " + change->bound() + "\n";
  if (tensor.rule.kind == MergeKind::reduce) {
    for (auto const& input : tensor.inputs)
      text += "  one value of " + terminal_text(model.set.sources[input.source]->name()) + "\n";
  }
  for (auto const& replica : tensor.replica_runs) {
    if (!replica.must_differ)
      text += "  compared with " + terminal_text(model.set.sources[replica.other.source]->name()) + "\n";
  }
  return text;
}

Json MergePlan::to_json() const {
  auto const& state = require(state_);
  Json out{{"format", format_name},
           {"version", 1},
           {"hash", codec::to_hex(state.hash)},
           {"inputs",
            {{"path", state.shards.string()},
             {"rules", state.options.rules.string()},
             {"tp", state.options.tp},
             {"pp", state.options.pp},
             {"ep", state.options.ep},
             {"pattern", state.options.pattern},
             {"policy", static_cast<int>(state.options.policy)},
             {"crc", static_cast<int>(state.options.crc)},
             {"extra_globals", state.options.extra_globals},
             {"model_key", state.options.model_key},
             {"moe_ep", state.options.moe_ep},
             {"fused_layout", static_cast<int>(state.options.fused_layout)}}}};
  out.update(substance(*state.model, state.rules));
  return out;
}

void MergePlan::save(std::filesystem::path const& file) const {
  auto const text = to_json().dump(1) + "\n";
  auto const directory = platform::Directory::open(
      file.has_parent_path() ? file.parent_path() : std::filesystem::path("."), plan_operation);
  platform::AtomicFile out(directory, file.filename().string(), text.size(), plan_operation);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

std::string job_id(MergePlan::State const& plan, std::string const& what) {
  codec::StreamingChecksum running;
  auto const add = [&](std::string const& text) { running.update(std::as_bytes(std::span(text))); };
  add(codec::to_hex(plan.hash) + what);
  // What a killed job has written of other bytes must not be taken for the result of these.
  for (auto const& file : plan.model->set.files)
    add(file.path + ":" + std::to_string(file.size) + ":" + std::to_string(file.changed) + "\n");
  return codec::to_hex(running.digest());
}

}  // namespace crossrank::checkpoint
