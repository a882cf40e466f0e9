#include "tools/inspect/clean_command.hpp"

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <sys/file.h>

#include <CLI/CLI.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "lib/node/inspect/flight_file.hpp"
#include "lib/node/memory/segment_names.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/system.hpp"
#include "tools/cli/option_flags.hpp"
#include "tools/cli/session.hpp"
#include "workspace/checkpoint/write/job/dead_jobs.hpp"
#include "workspace/nfs/clean_workspace.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* clean_footer =
    R"(Removes the files that killed jobs left in the directories: state files, temporary files, flight records, and the
folders of jobs that were writing a checkpoint. Completes a commit that a killed job had begun. Also removes this user's
shared memory of dead jobs on this machine. Keeps the files of running jobs, the states of processes that exited cleanly
and the parts of unfinished plans (--all removes these too), and files that only look like files of crossrank.

With --json the answer is one JSON object on standard output: command, ok, exit_code, dry_run, files, bytes, found:
[{path, removed, and bytes and kind, or why}] and errors: [{path, error}].

Exit codes:
  0    done
  1    a directory could not be cleaned
  2    usage error: an invalid option)";

struct CleanRequest {
  std::vector<std::string> directories{};
  workspace::CleanOptions options{};
  bool json = false;
};

/// Prints each result at once, or collects them for one JSON object.
class CleanReport {
 public:
  explicit CleanReport(CleanRequest const& request) : dry_run_(request.options.dry_run), json_(request.json) {}

  void kept(std::string const& path, std::string const& why) {
    auto const reason = with_flags(why);
    if (json_) return list_.push_back({{"path", path}, {"removed", false}, {"why", reason}});
    std::printf("kept %s: %s\n", terminal_text(path).c_str(), terminal_text(reason).c_str());
  }
  void removed(std::string const& path, std::uint64_t bytes, std::string const& kind) {
    ++files_;
    bytes_ += bytes;
    if (json_) return list_.push_back({{"path", path}, {"removed", !dry_run_}, {"bytes", bytes}, {"kind", kind}});
    std::printf("%s %s, %s, %" PRIu64 " bytes\n", dry_run_ ? "would remove" : "removed", terminal_text(path).c_str(),
                kind.c_str(), bytes);
  }
  void failed(std::string const& directory, Error const& error) {
    code_ = 1;
    errors_.push_back({{"path", directory}, {"error", json_with_flags(error.to_json())}});
    if (!json_) std::fprintf(stderr, "crossrank clean: %s\n", message_for_user(error).c_str());
  }
  /// Prints the summary. Returns the exit code.
  [[nodiscard]] int finish() {
    if (json_) {
      Json const answer{{"command", "clean"}, {"ok", code_ == 0}, {"exit_code", code_}, {"dry_run", dry_run_},
                        {"files", files_},    {"bytes", bytes_},  {"found", list_},     {"errors", errors_}};
      std::printf("%s\n", answer.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s: %d, with %" PRIu64 " bytes in files\n",
                  dry_run_ ? "items that would be removed" : "items removed", files_, bytes_);
    }
    return code_;
  }

 private:
  bool dry_run_;
  bool json_;
  int code_ = 0;
  int files_ = 0;
  std::uint64_t bytes_ = 0;
  Json list_ = Json::array();
  Json errors_ = Json::array();
};

void clean_directory(std::string const& directory, workspace::CleanOptions options, CleanReport& report) {
  for (auto const& file : workspace::clean_workspace(directory, options)) {
    auto const path = directory + "/" + file.name;
    auto const* const kind = file.is_state ? "a state file" : "a temporary file";
    file.removed ? report.removed(path, file.bytes, kind) : report.kept(path, file.why);
  }
}

/// Cleans up the folders in which jobs write checkpoints.
void clean_checkpoint_jobs(std::string const& directory, workspace::CleanOptions options, CleanReport& report) {
  for (auto const& job :
       checkpoint::clean_jobs(directory, {.dry_run = options.dry_run, .force = options.force, .all = options.all})) {
    auto const path = directory + "/" + job.name;
    auto const* const kind = job.was_committing ? "the folder of a checkpoint job (its commit is completed first)"
                                                : "the folder of a checkpoint job";
    job.removed ? report.removed(path, job.bytes, kind) : report.kept(path, job.why);
  }
}

/// Removes a flight record whose job has ended. Every running rank holds a lock on its record.
void clean_flight_record(platform::Directory const& directory, std::string const& name, workspace::CleanOptions options,
                         CleanReport& report) {
  auto const fd = directory.open_file(name, "crossrank clean");
  if (!fd) return;
  if (!node::holds_flight_record(*fd)) return report.kept(directory.path_of(name), "it is not a flight record");
  struct stat status {};
  auto const bytes = platform::system().fstat(fd->get(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  bool const is_held = platform::system().flock(fd->get(), LOCK_EX | LOCK_NB) != 0;
  if (is_held && (errno == EWOULDBLOCK || !options.force)) {
    return report.kept(directory.path_of(name),
                       errno == EWOULDBLOCK
                           ? "its job is still running"
                           : "the file system has no locks, so it is unknown whether its job is still running");
  }
  if (!options.dry_run) (void)directory.remove(name, "crossrank clean");
  report.removed(directory.path_of(name), bytes, "a flight record");
}

void clean_flight_records(std::string const& path, workspace::CleanOptions options, CleanReport& report) {
  auto const directory = platform::Directory::open(path, "crossrank clean");
  for (auto const& name : directory.names("crossrank clean")) {
    if (!node::is_flight_file_name(name)) continue;
    try {
      clean_flight_record(directory, name, options, report);
    } catch (IoError const& error) {
      report.kept(directory.path_of(name), error.what());
    }
  }
}

int clean(CleanRequest const& request) {
  CleanReport report(request);
  for (auto const& directory : request.directories) {
    try {
      clean_directory(directory, request.options, report);
      clean_flight_records(directory, request.options, report);
      clean_checkpoint_jobs(directory, request.options, report);
    } catch (Error const& error) {
      report.failed(directory, error);
    }
  }
  if (!request.options.dry_run) {
    for (auto const& name : node::sweep_names()) report.removed("/dev/shm" + name, 0, "shared memory");
  }
  return report.finish();
}

}  // namespace

void add_clean_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<CleanRequest>();
  auto* const command = app.add_subcommand("clean", "Remove the files that killed jobs left behind");
  command->add_option("directory", request->directories, "Directories of workspaces, checkpoints or flight records");
  command->add_flag("-n,--dry-run", request->options.dry_run, "Only print what would be removed from the directories");
  command->add_flag(
      "--all", request->options.all,
      "Also remove states that a process left on purpose when it exited cleanly, and parts of plans that are "
      "not finished");
  command->add_flag("--force", request->options.force,
                    "Also remove files on file systems without locks; only after all jobs have ended");
  command->add_flag("--json", request->json, "Print the result as one JSON object");
  command->footer(clean_footer);
  command->callback([request, &exit_code] { exit_code = clean(*request); });
}

}  // namespace crossrank::tools
