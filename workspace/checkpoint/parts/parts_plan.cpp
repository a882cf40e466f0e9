#include "workspace/checkpoint/parts/parts_plan_state.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/version.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/json_document.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/log.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/checkpoint/discovery/model_description.hpp"
#include "workspace/checkpoint/parts/file_recipe.hpp"
#include "workspace/checkpoint/parts/part_folder.hpp"
#include "workspace/checkpoint/parts/plan_path.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/verify/compare_replicas.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/job_folder.hpp"
#include "workspace/checkpoint/write/output_request.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"
#include "workspace/checkpoint/write/written_result.hpp"
#include "workspace/nfs/clean_workspace.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

PartsPlan::State const& require(std::shared_ptr<PartsPlan::State const> const& state) {
  if (!state) {
    throw UsageError({.operation = parts_operation,
                      .message = "the plan of parts is empty",
                      .hint = "make one with PartsPlan::make or PartsPlan::load"});
  }
  return *state;
}

/// Returns the stamps of all inputs: those that were opened, then the files that are copied.
std::vector<FileStamp> stamps_of(ShardSet const& set) {
  auto stamps = set.files;
  auto const pool = std::make_shared<FilePool>();
  for (auto const& sidecar : set.sidecars) static_cast<void>(pool->open(sidecar.path));
  for (auto& stamp : pool->stamps()) stamps.push_back(std::move(stamp));
  for (auto& stamp : stamps) stamp.path = absolute_path(stamp.path).string();
  return stamps;
}

/// Returns the name of the plan's folder. It depends on the recorded stamps, so that it is the same on all hosts.
std::string id_of(PlanFile const& file) {
  codec::StreamingChecksum running;
  auto const add = [&](std::string const& text) { running.update(std::as_bytes(std::span(text))); };
  auto const& options = file.options;
  add("parts " + codec::to_hex(file.merge_hash) + " " +
      std::to_string(options.single_file ? 0 : options.max_shard_bytes) + " " +
      std::to_string(static_cast<int>(options.format)) + "\n");
  for (auto const& stamp : file.stamps)
    add(stamp.path + ":" + std::to_string(stamp.size) + ":" + std::to_string(stamp.changed) + "\n");
  return codec::to_hex(running.digest());
}

std::vector<PlannedFile> planned_files(WriteRequest const& request) {
  std::vector<PlannedFile> files;
  for (auto const& file : request.files) files.push_back({.name = file.name, .bytes = file.bytes, .part = file.owner});
  return files;
}

WriteRequest request_of(MergePlan const& merge, fs::path const& out, PartsOptions const& options) {
  return consolidate_request(merge, out,
                             {.max_shard_bytes = options.max_shard_bytes,
                              .force = options.force,
                              .single_file = options.single_file,
                              .format = options.format},
                             options.parts);
}

[[noreturn]] void refuse_result(fs::path const& plan_file, PlanFile const& plan, char const* section,
                                std::string expected, std::string got) {
  std::string const version = CROSSRANK_VERSION;
  bool const same_version = plan.made_by == version;
  throw FormatError({.operation = parts_operation,
                     .message = same_version
                                    ? "the headers of the inputs or the rules have changed since the plan was made"
                                    : "version " + version + " of crossrank merges these inputs in another way than " +
                                          plan.made_by + ", which made the plan",
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = plan_file.string(),
                     .hint = same_version ? "make a new plan" : "use one version for the plan and for all parts",
                     .section = section});
}

/// Returns whether two files agree, apart from their recipes.
bool is_same_file(PlannedFile const& a, PlannedFile const& b) {
  return a.name == b.name && a.bytes == b.bytes && a.part == b.part;
}

/// Leaves out files beside the weights that appeared after the plan was made, such as the log of a job. Files that say
/// how to merge stay: a plan without them describes another merge.
void leave_out_new_sidecars(ShardSet const& set, PlanFile const& saved, std::vector<FileStamp>& found,
                            std::vector<ExtraFile>& extras) {
  std::set<std::string> recorded;
  for (auto const& stamp : saved.stamps) recorded.insert(stamp.path);
  for (auto const& sidecar : set.sidecars) {
    auto const path = absolute_path(sidecar.path).string();
    if (recorded.contains(path) || describes_model(sidecar.name)) continue;
    log_event(LogLevel::warning, "a file among the shards is newer than the plan, so it is not copied",
              {{"file", path}, {"output", saved.out.string()}});
    std::erase_if(found, [&](auto const& stamp) { return stamp.path == path; });
    std::erase_if(extras, [&](auto const& extra) { return extra.name == sidecar.name; });
  }
}

/// Opens all inputs of a plan that was read from a file, and makes its merge again.
std::unique_ptr<WholeMerge const> make_whole(PartsPlan::State const& state, MergePlan merge) {
  auto whole = std::make_unique<WholeMerge>();
  whole->merge = std::move(merge);
  auto const& saved = state.file;
  auto const& set = whole->merge.state().layout->set;
  whole->request = request_of(whole->merge, saved.out, saved.options);
  auto found = stamps_of(set);
  leave_out_new_sidecars(set, saved, found, whole->request.extras);
  require_recorded(saved.stamps, found, state.saved_as);
  if (whole->merge.hash() != saved.merge_hash)
    refuse_result(state.saved_as, saved, "merge_hash", codec::to_hex(saved.merge_hash),
                  codec::to_hex(whole->merge.hash()));
  auto const files = planned_files(whole->request);
  auto const [mine, theirs] =
      std::mismatch(files.begin(), files.end(), saved.files.begin(), saved.files.end(), is_same_file);
  if (mine != files.end() || theirs != saved.files.end()) {
    refuse_result(state.saved_as, saved, "files", theirs == saved.files.end() ? "no more files" : theirs->name,
                  mine == files.end() ? "no more files" : mine->name);
  }
  whole->request.inputs = std::move(found);
  whole->request.id = state.id;
  return whole;
}

/// Throws when an input that the plan has recorded is gone or has changed.
void require_unchanged(PartsPlan::State const& state) {
  auto const pool = std::make_shared<FilePool>();
  for (auto const& stamp : state.file.stamps) {
    std::error_code missing;
    if (fs::exists(stamp.path, missing)) static_cast<void>(pool->open(stamp.path));
  }
  require_recorded(state.file.stamps, pool->stamps(), state.saved_as);
}

/// Writes the recipes of all files to the plan's folder, durably, and sets their places.
void save_recipes(WholeMerge const& whole, platform::Directory const& folder, PlanFile& file) {
  platform::AtomicFile out(folder, recipes_name, 0, parts_operation);
  RecipeWriter const recipes(*whole.merge.state().layout);
  for (std::size_t i = 0; i < file.files.size(); ++i) {
    // An image holds the config too.
    auto const text =
        file.options.format == OutputFormat::images ? std::nullopt : recipes.text_for(whole.request.files[i]);
    file.files[i].recipe = {};
    if (!text || text->size() > codec::listing_limits.bytes) continue;
    auto const bytes = std::as_bytes(std::span(*text));
    file.files[i].recipe = {.begin = out.size(), .bytes = bytes.size(), .checksum = codec::checksum(bytes)};
    out.write(bytes);
  }
  out.commit(platform::IfExists::replace);
}

void warn_of_empty_parts(PartsPlan::State const& state) {
  auto const files = state.file.files.size();
  auto const parts = as_size(state.file.options.parts);
  if (parts <= files) return;
  auto const tensors = state.whole().merge.state().layout->tensors.size();
  std::string hint = "make fewer parts";
  if (tensors > files && !state.file.options.single_file) {
    std::uint64_t bytes = 0;
    for (auto const& file : state.file.files) bytes += file.bytes;
    // A file holds whole tensors, so there may still be fewer files than parts.
    auto const wanted = bytes / parts + 1;
    if (wanted < state.file.options.max_shard_bytes)
      hint += ", or more files with a smaller `max_shard_bytes`, such as " + std::to_string(wanted);
  }
  log_event(LogLevel::warning, "there are more parts than output files, so some parts have nothing to do",
            {{"files", std::to_string(files)}, {"parts", std::to_string(parts)}, {"hint", hint}});
}

UsageError result_is_gone(PartsPlan::State const& plan, std::string got, std::string const& operation) {
  if (!plan.is_saved.load(std::memory_order_relaxed)) {
    return UsageError({.operation = operation,
                       .message = "the plan was not saved",
                       .resource = plan.file.out.string(),
                       .hint = "call PartsPlan::save first; it makes the folder for the parts"});
  }
  return UsageError({.operation = operation,
                     .message = "the folder of this plan is gone, and the output does not have its result",
                     .got = std::move(got),
                     .resource = plan.file.out.string(),
                     .hint = "make the plan again, and run all of its parts"});
}

/// Throws unless the output has a file of this size.
void require_size(PartsPlan::State const& plan, std::string const& name, std::uint64_t bytes,
                  std::string const& operation) {
  std::error_code error;
  if (fs::file_size(plan.file.out / name, error) != bytes || error) throw result_is_gone(plan, name, operation);
}

}  // namespace

Collective lone_world() { return connect({.backend = "fake", .rank = 0, .world_size = 1}); }

void require_part(PartsPlan::State const& plan, int part) {
  auto const parts = plan.file.options.parts;
  if (part >= 0 && part < parts) return;
  throw UsageError({.operation = parts_operation,
                    .message = "the plan has no such part",
                    .expected = "a part from 0 to " + std::to_string(parts - 1),
                    .got = std::to_string(part),
                    .hint = "parts count from 0"});
}

OutputFile without_contents(PlannedFile const& file) {
  OutputFile out;
  out.name = file.name;
  out.bytes = file.bytes;
  out.owner = file.part;
  return out;
}

WholeMerge const& PartsPlan::State::whole() const {
  std::lock_guard const lock(mutex_);
  if (whole_) return *whole_;
  try {
    whole_ = make_whole(*this, MergePlan::make_quietly(lone_world(), file.inputs.shards, file.inputs.options));
  } catch (FormatError const&) {
    require_unchanged(*this);  // the merge itself fails with some changed inputs, and would not name them
    throw;
  }
  return *whole_;
}

WholeMerge const* PartsPlan::State::known_whole() const {
  std::lock_guard const lock(mutex_);
  return whole_.get();
}

JobRequest folder_request(PartsPlan::State const& plan, bool force) {
  auto request = job_request(plan.whole().request);
  request.force = force || plan.file.options.force;
  request.resume = true;
  return request;
}

void require_published(PartsPlan::State const& plan, std::vector<OutputFile> files, WorkerPoolOptions const& options) {
  for (auto& file : files) {
    file.owner = 0;
    require_size(plan, file.name, file.bytes, options.operation);
  }
  auto const world = lone_world();
  try {
    OutputWriter comparison(files, 0, platform::Directory::open(plan.file.out, options.operation));
    run_worker_pool(world, comparison, options);
  } catch (UsageError const& differs) {
    throw result_is_gone(plan, differs.info().got, options.operation);
  }
}

PartsPlan PartsPlan::make(MergePlan const& plan, fs::path const& out, PartsOptions const& options) {
  if (options.parts < 1 || options.parts > max_parts) {
    throw UsageError({.operation = parts_operation,
                      .message = "the number of parts is out of range",
                      .expected = "1 to " + std::to_string(max_parts),
                      .got = std::to_string(options.parts)});
  }
  auto const& merge = plan.state();
  auto whole = std::make_unique<WholeMerge>();
  whole->merge = plan;
  whole->request = request_of(plan, absolute_path(out), options);
  auto recorded = merge.options;
  recorded.rules = absolute_path(recorded.rules);
  auto state = std::make_shared<State>();
  state->file = PlanFile{.inputs = {absolute_path(merge.shards), std::move(recorded)},
                         .merge_hash = merge.hash,
                         .stamps = stamps_of(merge.layout->set),
                         .out = absolute_path(out),
                         .options = options,
                         .files = planned_files(whole->request),
                         .made_by = CROSSRANK_VERSION};
  state->id = id_of(state->file);
  whole->request.inputs = state->file.stamps;
  whole->request.id = state->id;
  state->set_whole(std::move(whole));
  if (!PartFolder::open(state->file.out, state->id)) JobFolder::check(folder_request(*state, false));
  require_distinct_ranks(*merge.layout, parts_operation);
  warn_of_empty_parts(*state);
  return PartsPlan(std::move(state));
}

PartsPlan PartsPlan::load(fs::path const& file) {
  require_protected_plan(file);
  auto state = std::make_shared<State>();
  state->file = read_plan_file(file);
  state->id = id_of(state->file);
  state->saved_as = file;
  state->is_saved.store(true, std::memory_order_relaxed);
  return PartsPlan(std::move(state));
}

void PartsPlan::save(fs::path const& file) const {
  auto const& state = require(state_);
  auto contents = state.file;
  static_cast<void>(to_text(contents));  // before anything is made
  require_plan_path(file, state.file);
  auto job = JobFolder::make(folder_request(state, false));
  if (entry_at(job.directory(), published_name) == Entry::file) {
    // An earlier `finish_parts` of the same plan was killed before it removed the folder.
    clear_job(job.directory());
    (void)job.directory().remove(published_name, parts_operation);
  }
  bool const is_known = entry_at(job.directory(), parts_record_name) == Entry::file;
  try {
    // Opened late, because it may be the output, which did not exist before.
    auto const folder = platform::Directory::open(absolute_path(file).parent_path(), parts_operation);
    save_recipes(state.whole(), job.directory(), contents);
    auto const text = to_text(contents);
    auto const name = file.filename().string();
    // Those of a killed `save`. Nothing else cleans this directory.
    static_cast<void>(workspace::clean_workspace(folder.path(), {.temporaries_of = name}));
    platform::AtomicFile out(folder, name, text.size(), parts_operation, platform::Readers::as_umask);
    out.write(std::as_bytes(std::span(text)));
    out.commit(platform::IfExists::replace);
    CROSSRANK_CRASH_POINT("parts.saved");
    // From now on the folder outlives its processes.
    if (!is_known) save_json(job.directory(), parts_record_name, Json{{"plan", absolute_path(file).string()}});
    CROSSRANK_CRASH_POINT("parts.planned");
    state.is_saved.store(true, std::memory_order_relaxed);
  } catch (...) {
    if (!is_known) job.remove();
    throw;
  }
}

int PartsPlan::parts() const { return require(state_).file.options.parts; }
fs::path const& PartsPlan::out() const { return require(state_).file.out; }
MergePlan const& PartsPlan::merge_plan() const { return require(state_).whole().merge; }
PartsPlan::State const& PartsPlan::state() const { return require(state_); }

std::vector<std::string> PartsPlan::files(int part) const {
  auto const& state = require(state_);
  require_part(state, part);
  std::vector<std::string> names;
  for (auto const& file : state.file.files) {
    if (file.part == part) names.push_back(file.name);
  }
  return names;
}

std::uint64_t PartsPlan::bytes(int part) const {
  auto const& state = require(state_);
  require_part(state, part);
  std::uint64_t bytes = 0;
  for (auto const& file : state.file.files) bytes += file.part == part ? file.bytes : 0;
  return bytes;
}

std::vector<int> PartsPlan::missing() const {
  auto const& state = require(state_);
  auto const folder = PartFolder::open(state.file.out, state.id);
  if (!folder) {
    for (auto const& file : state.file.files) require_size(state, file.name, file.bytes, parts_operation);
    return {};
  }
  if (folder->stage() != PlanStage::open) return {};
  std::set<int> missing;
  for (auto const& file : state.file.files) {
    if (!missing.contains(file.part) && folder->state_of(without_contents(file)) == PartFile::missing)
      missing.insert(file.part);
  }
  return {missing.begin(), missing.end()};
}

}  // namespace crossrank::checkpoint
