#include "workspace/checkpoint/write/job/commit.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>

#include "lib/core/log.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/discovery/model_description.hpp"
#include "workspace/checkpoint/discovery/weight_files.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the place of a file in the order in which files get their names. They lose them in the opposite order. What
/// makes a loader take the files for a checkpoint comes last: the weights, which may be one file without an index, then
/// the index, and then the config and the metadata of a distributed checkpoint.
int commit_rank(std::string const& name) {
  if (name == dcp_metadata_name) return 4;
  if (name == "config.json") return 3;
  if (name.ends_with(".index.json")) return 2;
  return is_weights(name) && !is_other_state(name) ? 1 : 0;
}

std::vector<std::string> in_commit_order(std::vector<std::string> names) {
  std::ranges::stable_sort(names, {}, commit_rank);
  return names;
}

/// Returns whether a name in a commit record is a path inside the output.
bool stays_inside(std::string const& name) {
  if (name.find('\0') != std::string::npos) return false;  // the system would take what comes before
  for (std::size_t begin = 0; begin <= name.size();) {
    auto const end = std::min(name.find('/', begin), name.size());
    auto const part = std::string_view(name).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

/// Splits a name into its folders and its last part.
std::pair<std::vector<std::string>, std::string> split_path(std::string const& name) {
  std::vector<std::string> folders;
  std::size_t begin = 0;
  for (auto at = name.find('/'); at != std::string::npos; at = name.find('/', begin)) {
    folders.push_back(name.substr(begin, at - begin));
    begin = at + 1;
  }
  return {std::move(folders), name.substr(begin)};
}

}  // namespace

bool is_checkpoint_file(std::string const& name) {
  if (name == dcp_metadata_name) return true;
  if (name.starts_with('.') || is_adapter(name)) return false;
  if (is_other_state(name) && !name.ends_with(".safetensors")) return false;
  if (describes_model(name) || name == "training_state.json" || name.ends_with(".safetensors.index.json") ||
      name.ends_with(".bin.index.json"))
    return true;
  return name.ends_with(".safetensors") || name.ends_with(".pth") || name.ends_with(".pt") ||
         name.ends_with(".distcp") || (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

std::vector<std::string> files_to_replace(platform::Directory const& out, std::vector<std::string> const& names) {
  std::set<std::string> const wanted(names.begin(), names.end());
  std::vector<std::string> found;
  for (auto const& name : out.names(write_operation)) {
    bool const is_wanted = wanted.contains(name);
    if (!is_wanted && !is_checkpoint_file(name)) continue;
    auto const entry = entry_at(out, name);
    if (entry == Entry::folder && is_wanted) {
      throw UsageError({.operation = write_operation,
                        .message = "a folder has the same name as an output file",
                        .resource = out.path_of(name),
                        .hint = "rename the folder, or choose another output directory"});
    }
    if (entry == Entry::file) found.push_back(name);
  }
  for (auto const& name : wanted) {
    if (name.find('/') != std::string::npos && entry_at(out, name) == Entry::file) found.push_back(name);
  }
  return found;
}

bool has_commit_record(platform::Directory const& work) { return entry_at(work, commit_record_name) == Entry::file; }

std::optional<CommitRecord> load_commit_record(platform::Directory const& work) {
  if (!has_commit_record(work)) return std::nullopt;
  constexpr auto hint = "remove the folder; files in it that start with .old. are the previous checkpoint";
  auto const refuse = [&](std::string got) {
    return unreadable_record(work.path_of(commit_record_name), std::move(got), hint);
  };
  auto const note = load_json(work, commit_record_name, hint);
  CommitRecord plan;
  try {
    plan = {.from_out = note.at("old").get<std::vector<std::string>>(),
            .to_out = note.at("new").get<std::vector<std::string>>()};
  } catch (Json::exception const& e) {
    throw refuse(e.what());
  }
  // A job never writes names outside the output.
  for (auto const* names : {&plan.from_out, &plan.to_out}) {
    for (auto const& name : *names) {
      if (!stays_inside(name)) throw refuse(name);
    }
  }
  return plan;
}

void save_commit_record(platform::Directory const& work, CommitRecord const& plan) {
  save_json(work, commit_record_name, Json{{"old", plan.from_out}, {"new", plan.to_out}});
}

void Commit::run(CommitRecord const& plan) {
  try {
    move_old_aside(plan);
    move_new_in(plan);
  } catch (...) {
    undo();
    throw;
  }
  renames_.clear();
}

/// Opens the folder inside the output that holds `name` and creates missing folders. Returns an invalid descriptor for
/// the output itself. Does not follow links, because another user might direct files elsewhere with them.
platform::Fd Commit::open_parent(std::string const& name) {
  constexpr mode_t mode = S_IRWXU | S_IRWXG | S_IROTH | S_IXOTH;  // the umask applies
  platform::Fd at;
  std::string way;
  for (auto const& folder : split_path(name).first) {
    auto& os = platform::system();
    int const from = at ? at.get() : out_.fd();
    way += (way.empty() ? "" : "/") + folder;
    if (os.mkdirat(from, folder.c_str(), mode) != 0 && errno != EEXIST)
      platform::throw_io(std::string(write_operation) + ": mkdir", out_.path_of(way), errno);
    platform::Fd next(os.openat(from, folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
    if (!next) platform::throw_io(std::string(write_operation) + ": open directory", out_.path_of(way), errno);
    at = std::move(next);
    parents_.insert(way);
  }
  return at;
}

/// Makes renames durable in the output and in its changed folders.
void Commit::sync_out() const {
  for (auto const& way : parents_) {
    platform::Fd const folder(
        platform::system().openat(out_.fd(), way.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
    if (!folder) platform::throw_io(std::string(write_operation) + ": open directory", out_.path_of(way), errno);
    platform::sync_directory(folder.get(), out_.path_of(way), write_operation);
  }
  out_.sync(write_operation);
}

/// Renames a file. Returns false if it does not exist.
bool Commit::move(Rename const& wanted, char const* what) {
  auto const& from = wanted.to_out ? work_ : out_;
  auto const& to = wanted.to_out ? out_ : work_;
  if (entry_at(from, wanted.from) != Entry::file) return false;
  auto const& outside = wanted.to_out ? wanted.to : wanted.from;
  auto const parent = open_parent(outside);
  auto const last = split_path(outside).second;
  int const out_fd = parent ? parent.get() : out_.fd();
  int const moved = wanted.to_out ? platform::system().renameat(work_.fd(), wanted.from.c_str(), out_fd, last.c_str())
                                  : platform::system().renameat(out_fd, last.c_str(), work_.fd(), wanted.to.c_str());
  if (moved != 0) {
    int const error = errno;
    // NFS may send a request twice: the first one succeeds and the second one fails.
    if (error != ENOENT || entry_at(to, wanted.to) != Entry::file)
      platform::throw_io(std::string(write_operation) + ": " + what, from.path_of(wanted.from), error);
  }
  renames_.push_back(wanted);
  return true;
}

void Commit::move_old_aside(CommitRecord const& plan) {
  std::set<std::string_view> const result(plan.to_out.begin(), plan.to_out.end());
  auto names = in_commit_order(plan.from_out);
  std::ranges::reverse(names);
  for (auto const& name : names) {
    // A file of the result that is not in the job's folder was already committed by a killed job.
    if (result.contains(name) && entry_at(work_, job_file_name(name)) != Entry::file) continue;
    if (move({.to_out = false, .from = name, .to = backup_name(name)}, "move the old checkpoint aside"))
      CROSSRANK_CRASH_POINT("checkpoint.commit.moved_old");
  }
  out_.sync(write_operation);
}

void Commit::move_new_in(CommitRecord const& plan) {
  auto const names = in_commit_order(plan.to_out);
  for (auto const& name : names) {
    // The last file makes the output a checkpoint, so all other files must be durable before it appears.
    if (&name == &names.back()) sync_out();
    if (move({.to_out = true, .from = job_file_name(name), .to = name}, "commit")) {
      CROSSRANK_CRASH_POINT("checkpoint.commit.named");
    } else if (entry_at(out_, name) != Entry::file) {
      throw FormatError(
          {.operation = write_operation,
           .message = "a file that a killed job had finished is missing",
           .resource = work_.path_of(job_file_name(name)),
           .hint = "put it back, or remove its folder; files in it that start with .old. are the previous checkpoint",
           .section = to_string(ErrorSection::files)});
    }
  }
  sync_out();
}

void Commit::undo() noexcept {
  for (auto at = renames_.rbegin(); at != renames_.rend(); ++at) {
    auto const& from = at->to_out ? out_ : work_;
    auto const& to = at->to_out ? work_ : out_;
    bool done = false;
    for (int attempt = 0; attempt < 3 && !done; ++attempt)
      done = platform::system().renameat(from.fd(), at->to.c_str(), to.fd(), at->from.c_str()) == 0;
    partial_ = partial_ || !done;
  }
  renames_.clear();
  // Removes empty folders only, the deepest first.
  for (auto at = parents_.rbegin(); at != parents_.rend(); ++at)
    static_cast<void>(platform::system().unlinkat(out_.fd(), at->c_str(), AT_REMOVEDIR));
  if (partial_) log_event(LogLevel::error, "could not restore the old checkpoint", {{"folder", work_.path().string()}});
}

}  // namespace crossrank::checkpoint
