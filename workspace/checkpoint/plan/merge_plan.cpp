#include <crossrank/checkpoint.hpp>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/io_error.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/discovery/other_ranks.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/plan/checks/plan_warnings.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/plan/plan_inputs.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/plan/plan_text.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* format_name = "crossrank merge plan";

/// Throws if the index lists tensors that no file has.
void require_listed(ShardSet const& set, std::string const& where) {
  if (set.absent.empty()) return;
  throw FormatError({.operation = plan_operation,
                     .message = "the index lists a tensor that is in none of its files: " + set.absent.front(),
                     .got = std::to_string(set.absent.size()) + " such tensors",
                     .resource = where,
                     .hint = "copy the file of the same save again, or remove the index if it is wrong",
                     .details = set.absent,
                     .section = to_string(ErrorSection::coverage)});
}

std::shared_ptr<MergePlan::State> make_state(std::filesystem::path const& shards, PlanOptions const& options) {
  auto state = std::make_shared<MergePlan::State>();
  state->shards = shards;
  state->options = options;
  require_no_other_ranks(shards);
  auto set = open_shard_set(shards, shard_set_options(options));
  require_listed(set, shards.string());
  std::optional<RuleFile> rule_file;
  if (!options.rules.empty()) rule_file = RuleFile::read(options.rules);
  auto planned = plan_shard_set(std::move(set), std::move(rule_file), options.policy, shards.string());
  state->layout = std::move(planned.layout);
  state->rules = std::move(planned.rules);
  state->merged = std::make_shared<MergedSource>(state->layout);
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

void log_warnings(MergePlan::State const& state) {
  auto const& file = state.options.rules;
  std::optional<RuleFile> rules;
  if (!file.empty()) rules = RuleFile::read(file);
  log_plan_warnings({.layout = *state.layout,
                     .rules = state.rules,
                     .where = state.shards.string(),
                     .rule_file = rules ? &*rules : nullptr,
                     .rule_path = file.string()});
}

MergePlan::State const& require(std::shared_ptr<MergePlan::State const> const& state) {
  if (!state)
    throw UsageError({.operation = plan_operation,
                      .message = "the plan is empty",
                      .hint = "make one with MergePlan::make or MergePlan::load"});
  return *state;
}

/// The contents of a file that `MergePlan::save` wrote.
struct SavedPlan {
  PlanInputs inputs{};
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

SavedPlan read_saved_plan(std::filesystem::path const& file) {
  auto const found = read_json_object(file, codec::listing_limits);
  if (!found) platform::throw_io(std::string(plan_operation) + ": open", file.string(), ENOENT);
  try {
    if (found->value("format", std::string()) != format_name) refuse_saved_plan(file, "this is not a merge plan");
    return {.inputs = plan_inputs_from_json(found->at("inputs")), .hash = found->value("hash", std::string())};
  } catch (Json::exception const& error) {
    refuse_saved_plan(file, "a value of this merge plan is missing or has the wrong type", error.what());
  }
}

/// Returns the text of a plan that is saved in `file`.
std::string text_of(Json const& plan, std::filesystem::path const& file) {
  try {
    return plan.dump(1);
  } catch (Json::exception const&) {
    throw UsageError({.operation = plan_operation,
                      .message = "the path of the shards or of the rules is not valid UTF-8, so a plan cannot name it",
                      .resource = file.string(),
                      .hint = "rename the directory"});
  }
}

}  // namespace

MergePlan MergePlan::make_quietly(Collective const& world, std::filesystem::path const& shards,
                                  PlanOptions const& options) {
  std::shared_ptr<State> state;
  agree(world, plan_operation, [&] { state = make_state(shards, options); });
  require_same(world, *state);
  return MergePlan(std::move(state));
}

MergePlan MergePlan::make(Collective const& world, std::filesystem::path const& shards, PlanOptions const& options) {
  auto plan = make_quietly(world, shards, options);
  agree(world, plan_operation, [&] {
    if (world.rank() == 0) log_warnings(plan.state());
  });
  return plan;
}

MergePlan MergePlan::make(std::filesystem::path const& shards, PlanOptions const& options) {
  MergePlan plan(make_state(shards, options));
  log_warnings(plan.state());
  return plan;
}

MergePlan MergePlan::load(Collective const& world, std::filesystem::path const& file) {
  SavedPlan saved;
  agree(world, plan_operation, [&] { saved = read_saved_plan(file); });
  auto plan = make(world, saved.inputs.shards, saved.inputs.options);
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
           {"inputs", checkpoint::to_json(PlanInputs{state.shards, state.options})}};
  out.update(describe_layout(*state.layout, state.rules));
  return out;
}

void MergePlan::save(std::filesystem::path const& file) const {
  auto const& state = require(state_);
  std::error_code unknown;
  if (std::filesystem::symlink_status(file, unknown).type() != std::filesystem::file_type::not_found && !unknown) {
    platform::throw_io({.operation = plan_operation,
                        .message = "there is a file with this name already",
                        .resource = file.string(),
                        .hint = "choose another name, or remove the file"},
                       EEXIST);
  }
  auto inputs = PlanInputs{std::filesystem::absolute(state.shards), state.options};
  if (!inputs.options.rules.empty()) inputs.options.rules = std::filesystem::absolute(inputs.options.rules);
  auto saved = to_json();
  saved["inputs"] = checkpoint::to_json(inputs);  // the plan may be loaded in another working directory
  auto const text = text_of(saved, file) + "\n";
  auto const directory = platform::Directory::open(
      file.has_parent_path() ? file.parent_path() : std::filesystem::path("."), plan_operation);
  platform::AtomicFile out(directory, file.filename().string(), text.size(), plan_operation,
                           platform::Readers::as_umask);
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
