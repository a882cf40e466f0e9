#include <crossrank/checkpoint.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/platform/atomic_file.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/checkpoint/plan/check_model.hpp"
#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/source/error_sections.hpp"
#include "workspace/checkpoint/plan/single_shard.hpp"
#include "workspace/checkpoint/discovery/other_ranks.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/plan/plan_text.hpp"
#include "workspace/checkpoint/plan/plan_warnings.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* format_name = "crossrank merge plan";

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

/// Finds missing stages and expert ranks by gaps in the numbers of layers or experts.
void require_coverage(MergeLayout const& layout, Json const& config, std::string const& where) {
  for (auto const& gap : find_gaps(names_of(layout), config)) {
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

/// Throws if the index lists tensors that no file has.
void require_listed(ShardSet const& set, std::string const& where) {
  if (set.absent.empty()) return;
  throw FormatError({.operation = plan_operation,
                     .message = "the index lists a tensor that is in none of its files: " + set.absent.front(),
                     .got = std::to_string(set.absent.size()) + " such tensors",
                     .resource = where,
                     .hint = "copy the file of the same save again, or remove the index if it is wrong",
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
    state->layout = std::make_shared<MergeLayout const>(merge_all(set, rule_set));
  } else {
    state->layout = std::make_shared<MergeLayout const>(lay_out_merge(std::move(set), {}));
  }
  require_coverage(*state->layout, sizes, shards.string());
  state->hash = hash_of(*state->layout, state->rules);
  return state;
}

void require_same(Collective const& world, MergePlan::State const& state) {
  auto const all = world.all_gatherv(std::as_bytes(std::span(&state.hash, 1)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError({.operation = plan_operation,
                         .message = "ranks 0 and " + std::to_string(rank) + " see different shards or rules",
                         .resource = state.shards.string(),
                         .hint = "give all ranks the same files on a shared file system",
                         .rank = world.rank(),
                         .world_size = world.world_size(),
                         .failed_ranks = {static_cast<int>(rank)}});
  }
}

MergePlan::State const& require(std::shared_ptr<MergePlan::State const> const& state) {
  if (!state)
    throw UsageError({.operation = plan_operation, .message = "the plan is empty: make one with MergePlan::make"});
  return *state;
}

/// The contents of a file that `MergePlan::save` wrote.
struct SavedPlan {
  std::filesystem::path shards{};
  PlanOptions options{};
  std::string hash{};
};

[[noreturn]] void refuse_saved_plan(std::filesystem::path const& file, char const* message, std::string got = {}) {
  throw FormatError({.operation = plan_operation,
                     .message = message,
                     .got = std::move(got),
                     .resource = file.string(),
                     .hint = "give a file that MergePlan::save wrote",
                     .section = "json"});
}

/// Reads an enumerator that was saved as a number.
template <class Enum>
Enum saved_enum(Json const& inputs, char const* key) {
  return static_cast<Enum>(std::clamp(inputs.value(key, 0), 0, 2));
}

SavedPlan read_saved_plan(std::filesystem::path const& file) {
  auto const found = read_json_object(file, codec::listing_limits);
  if (!found) refuse_saved_plan(file, "there is no such file");
  try {
    if (found->value("format", std::string()) != format_name) refuse_saved_plan(file, "this is not a merge plan");
    auto const& inputs = found->at("inputs");
    return {.shards = inputs.value("path", std::string()),
            .options = {.rules = inputs.value("rules", std::string()),
                        .tp = inputs.value("tp", 0),
                        .pp = inputs.value("pp", 0),
                        .ep = inputs.value("ep", 0),
                        .pattern = inputs.value("pattern", std::string()),
                        .policy = saved_enum<ScalePolicy>(inputs, "policy"),
                        .crc = saved_enum<ArchiveCrc>(inputs, "crc"),
                        .extra_globals = inputs.value("extra_globals", std::vector<std::string>()),
                        .model_key = inputs.value("model_key", std::string()),
                        .moe_ep = inputs.value("moe_ep", 0),
                        .fused_layout = saved_enum<FusedLayout>(inputs, "fused_layout")},
            .hash = found->value("hash", std::string())};
  } catch (Json::exception const& error) {
    refuse_saved_plan(file, "a value of this merge plan is missing or has the wrong type", error.what());
  }
}

}  // namespace

MergePlan MergePlan::make(Collective const& world, std::filesystem::path const& shards, PlanOptions const& options) {
  std::shared_ptr<State> state;
  agree(world, plan_operation, [&] { state = make_state(shards, options); });
  require_same(world, *state);
  if (world.rank() == 0) {
    log_plan_warnings(*state);
  }
  return MergePlan(std::move(state));
}

MergePlan MergePlan::load(Collective const& world, std::filesystem::path const& file) {
  SavedPlan saved;
  agree(world, plan_operation, [&] { saved = read_saved_plan(file); });
  auto plan = make(world, saved.shards, saved.options);
  auto const hash = codec::to_hex(plan.hash());
  if (hash != saved.hash) {
    throw FormatError({.operation = plan_operation,
                       .message = "the inputs or rules have changed since the plan was saved",
                       .expected = saved.hash,
                       .got = hash,
                       .resource = file.string(),
                       .hint = "make a new plan",
                       .section = "hash"});
  }
  return plan;
}

std::uint64_t MergePlan::hash() const { return require(state_).hash; }
std::uint64_t MergePlan::bytes() const { return require(state_).layout->bytes; }
MergePlan::State const& MergePlan::state() const { return require(state_); }

std::vector<Requantized> MergePlan::requantized() const {
  std::vector<Requantized> changed;
  for (auto const& tensor : require(state_).layout->tensors) {
    for (auto const& change : tensor.changes) changed.push_back({tensor.name, change->bound()});
  }
  return changed;
}

std::vector<std::string> MergePlan::tensors() const { return names_of(*require(state_).layout); }

std::string MergePlan::explain(std::string_view name) const { return explain_tensor(*require(state_).layout, name); }

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
  out.update(describe_layout(*state.layout, state.rules));
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
  // A job must not resume from files that a killed job wrote from other inputs.
  for (auto const& file : plan.layout->set.files)
    add(file.path + ":" + std::to_string(file.size) + ":" + std::to_string(file.changed) + "\n");
  return codec::to_hex(running.digest());
}

}  // namespace crossrank::checkpoint
