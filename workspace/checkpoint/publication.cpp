#include "workspace/checkpoint/publication.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>

#include "lib/core/log.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/io_error.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

/// Without the config, then the index, nobody takes the rest for a checkpoint: these go first.
int removal_rank(std::string const& name) {
  if (name == "config.json") return 0;
  return name.ends_with(".index.json") ? 1 : 2;
}

}  // namespace

bool is_checkpoint_file(std::string const& name) {
  if (name.starts_with('.')) return false;
  if (name == "config.json" || name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json"))
    return true;
  return name.ends_with(".safetensors") || name.ends_with(".pth") || name.ends_with(".pt") ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

std::vector<std::string> files_in_the_way(platform::Directory const& out, std::vector<std::string> const& names) {
  std::set<std::string> const wanted(names.begin(), names.end());
  std::vector<std::string> found;
  for (auto const& name : out.names(write_operation)) {
    bool const is_wanted = wanted.contains(name);
    if (!is_wanted && !is_checkpoint_file(name)) continue;
    auto const entry = entry_at(out, name);
    if (entry == Entry::folder && is_wanted) {
      throw UsageError({.operation = write_operation,
                        .message = "a folder has the name of a file of the result",
                        .resource = out.path_of(name),
                        .remedy = "rename it, or give another directory"});
    }
    if (entry == Entry::file) found.push_back(name);
  }
  return found;
}

bool has_plan(platform::Directory const& work) { return entry_at(work, plan_name) == Entry::file; }

std::optional<PublicationPlan> load_plan(platform::Directory const& work) {
  if (!has_plan(work)) return std::nullopt;
  constexpr auto remedy = "remove the folder; what starts with .old. there is the checkpoint before";
  auto const refuse = [&](std::string got) { return unreadable_note(work.path_of(plan_name), std::move(got), remedy); };
  auto const note = load_json(work, plan_name, remedy);
  PublicationPlan plan;
  try {
    plan = {.from_out = note.at("old").get<std::vector<std::string>>(),
            .to_out = note.at("new").get<std::vector<std::string>>()};
  } catch (Json::exception const& e) {
    throw refuse(e.what());
  }
  // A name that leads elsewhere was never written by a job.
  for (auto const* names : {&plan.from_out, &plan.to_out}) {
    for (auto const& name : *names) {
      if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) throw refuse(name);
    }
  }
  return plan;
}

void save_plan(platform::Directory const& work, PublicationPlan const& plan) {
  save_json(work, plan_name, Json{{"old", plan.from_out}, {"new", plan.to_out}});
}

void Publication::run(PublicationPlan const& plan) {
  try {
    take_old(plan);
    give_new(plan);
  } catch (...) {
    undo();
    throw;
  }
  moves_.clear();
}

/// False when there is no such file.
bool Publication::move(Move const& wanted, char const* what) {
  auto const& from = wanted.to_out ? work_ : out_;
  auto const& to = wanted.to_out ? out_ : work_;
  if (entry_at(from, wanted.from) != Entry::file) return false;
  if (platform::system().renameat(from.fd(), wanted.from.c_str(), to.fd(), wanted.to.c_str()) != 0) {
    int const error = errno;
    // NFS may send a request twice: done first, refused then.
    if (error != ENOENT || entry_at(to, wanted.to) != Entry::file)
      platform::throw_io(std::string(write_operation) + ": " + what, from.path_of(wanted.from), error);
  }
  moves_.push_back(wanted);
  return true;
}

void Publication::take_old(PublicationPlan const& plan) {
  auto names = plan.from_out;
  std::stable_sort(names.begin(), names.end(),
                   [](auto const& a, auto const& b) { return removal_rank(a) < removal_rank(b); });
  for (auto const& name : names) {
    // A name of the result that is no longer in the job's folder is published already: a killed job went that far.
    bool const is_new = std::find(plan.to_out.begin(), plan.to_out.end(), name) != plan.to_out.end();
    if (is_new && entry_at(work_, name) != Entry::file) continue;
    if (move({.to_out = false, .from = name, .to = old_name(name)}, "move the old checkpoint aside"))
      CROSSRANK_CRASH_POINT("checkpoint.publish.moved_old");
  }
  out_.sync(write_operation);
}

void Publication::give_new(PublicationPlan const& plan) {
  for (auto const& name : plan.to_out) {
    // The last name makes it a checkpoint: whatever it speaks of is there for good by then.
    if (&name == &plan.to_out.back()) out_.sync(write_operation);
    if (move({.to_out = true, .from = name, .to = name}, "publish")) {
      CROSSRANK_CRASH_POINT("checkpoint.publish.named");
    } else if (entry_at(out_, name) != Entry::file) {
      throw FormatError({.operation = write_operation,
                         .message = "a file that a killed job had finished is gone",
                         .resource = work_.path_of(name),
                         .remedy = "put it back, or remove its folder: what starts with .old. there is the checkpoint "
                                   "before",
                         .section = "files"});
    }
  }
  out_.sync(write_operation);
}

void Publication::undo() noexcept {
  for (auto at = moves_.rbegin(); at != moves_.rend(); ++at) {
    auto const& from = at->to_out ? out_ : work_;
    auto const& to = at->to_out ? work_ : out_;
    bool done = false;
    for (int attempt = 0; attempt < 3 && !done; ++attempt)
      done = platform::system().renameat(from.fd(), at->to.c_str(), to.fd(), at->from.c_str()) == 0;
    halfway_ = halfway_ || !done;
  }
  moves_.clear();
  if (halfway_)
    log_event(LogLevel::error, "the old checkpoint could not be put back", {{"folder", work_.path().string()}});
}

}  // namespace crossrank::checkpoint
