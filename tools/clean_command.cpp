#include "tools/clean_command.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <crossrank/error.hpp>

#include "lib/node/names.hpp"
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

int clean(CleanRequest const& request) {
  CleanTotal total;
  int code = 0;
  for (auto const& directory : request.directories) {
    try {
      clean_directory(directory, request.options, total);
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
      "Removes state files and temporaries whose writer is dead from the directories, and this user's shared memory "
      "of\n"
      "dead jobs from this machine. Files of running jobs and files of others stay. Exit code: 0, or 1 when a "
      "directory\n"
      "could not be read.");
  command->callback([request, &exit_code] { exit_code = clean(*request); });
}

}  // namespace crossrank::tools
