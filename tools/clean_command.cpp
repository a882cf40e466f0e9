#include "tools/clean_command.hpp"

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

#include "lib/node/flight_file.hpp"
#include "lib/node/names.hpp"
#include "lib/platform/directory.hpp"
#include "lib/platform/system.hpp"
#include "workspace/checkpoint/job_folder.hpp"
#include "workspace/clean_workspace.hpp"

namespace crossrank::tools {
namespace {

struct CleanRequest {
  std::vector<std::string> directories{};
  workspace::CleanOptions options{};
};

struct CleanTotal {
  int files = 0;
  std::uint64_t bytes = 0;
};

void clean_directory(std::string const& directory, workspace::CleanOptions options, CleanTotal& total) {
  for (auto const& file : workspace::clean_workspace(directory, options)) {
    if (!file.removed) {
      std::printf("kept %s/%s: %s\n", directory.c_str(), file.name.c_str(), file.why.c_str());
      continue;
    }
    std::printf("%s %s/%s, %" PRIu64 " bytes\n", options.dry_run ? "would remove" : "removed", directory.c_str(),
                file.name.c_str(), file.bytes);
    ++total.files;
    total.bytes += file.bytes;
  }
}

/// Folders in which jobs that write checkpoints work.
void clean_checkpoint_jobs(std::string const& path, workspace::CleanOptions options, CleanTotal& total) {
  for (auto const& job : checkpoint::clean_jobs(path, options.dry_run)) {
    if (!job.removed) {
      std::printf("kept %s/%s: %s\n", path.c_str(), job.name.c_str(), job.why.c_str());
      continue;
    }
    std::printf("%s %s/%s, %" PRIu64 " bytes\n", options.dry_run ? "would remove" : "removed", path.c_str(),
                job.name.c_str(), job.bytes);
    ++total.files;
    total.bytes += job.bytes;
  }
}

/// Records of jobs of which no rank lives: each rank of one holds its lock.
void clean_flight_records(std::string const& path, workspace::CleanOptions options, CleanTotal& total) {
  auto const directory = platform::Directory::open(path, "crossrank clean");
  for (auto const& name : directory.names("crossrank clean")) {
    if (!node::is_flight_file_name(name)) continue;
    auto const fd = directory.open_file(name, "crossrank clean");
    if (!fd) continue;
    bool const is_held = platform::system().flock(fd->get(), LOCK_EX | LOCK_NB) != 0;
    if (is_held && (errno == EWOULDBLOCK || !options.force)) {
      std::printf("kept %s/%s: %s\n", path.c_str(), name.c_str(),
                  errno == EWOULDBLOCK ? "its job is running" : "this file system has no locks that would tell");
      continue;
    }
    if (!options.dry_run) (void)directory.remove(name, "crossrank clean");
    std::printf("%s %s/%s, a flight record\n", options.dry_run ? "would remove" : "removed", path.c_str(),
                name.c_str());
    ++total.files;
  }
}

int clean(CleanRequest const& request) {
  CleanTotal total;
  int code = 0;
  for (auto const& directory : request.directories) {
    try {
      clean_directory(directory, request.options, total);
      clean_flight_records(directory, request.options, total);
      clean_checkpoint_jobs(directory, request.options, total);
    } catch (Error const& error) {
      std::fprintf(stderr, "crossrank clean: %s\n", error.what());
      code = 1;
    }
  }
  if (!request.options.dry_run) {
    for (auto const& name : node::sweep_names()) {
      std::printf("removed shared memory %s\n", name.c_str());
      ++total.files;
    }
  }
  std::printf("%s: %d, %" PRIu64 " bytes in files\n", request.options.dry_run ? "would remove" : "removed", total.files,
              total.bytes);
  return code;
}

}  // namespace

void add_clean_command(CLI::App& app, int& exit_code) {
  auto const request = std::make_shared<CleanRequest>();
  auto* const command = app.add_subcommand("clean", "Remove what killed jobs left behind");
  command->add_option("directory", request->directories, "Workspace directories");
  command->add_flag("-n,--dry-run", request->options.dry_run,
                    "Say what would be removed from the directories, remove nothing");
  command->add_flag("--force", request->options.force,
                    "Also files whose file system has no locks: only when all jobs have ended");
  command->footer(
      "Removes from the directories what dead jobs left there: state files, temporaries, flight records, folders of "
      "jobs\n"
      "that were writing a checkpoint; and this user's shared memory of dead jobs from this machine. Files of running\n"
      "jobs and files of others stay. Exit code: 0, or 1 when a directory could not be read.");
  command->callback([request, &exit_code] { exit_code = clean(*request); });
}

}  // namespace crossrank::tools
