#include "workspace/nfs/clean_workspace.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/files/directory.hpp"
#include "workspace/nfs/writer_lock.hpp"
#include "workspace/nfs/state_file_names.hpp"
#include "workspace/nfs/file_identity.hpp"

namespace crossrank::workspace {
namespace {

std::string reason_to_keep(WriterState writer, CleanOptions options) {
  switch (writer) {
    case WriterState::dead: return {};
    case WriterState::alive: return "its writer is still running";
    case WriterState::finished:
      return options.all ? "" : "its writer exited cleanly and left it on purpose; `all` removes it";
    case WriterState::unknown: break;
  }
  return options.force ? "" : "the file system has no locks, so it is unknown whether its writer is still running";
}

bool is_looked_at(std::string const& name, CleanOptions options) {
  if (!options.temporaries_of.empty()) return platform::is_temporary_of(name, options.temporaries_of);
  return parse_state_file_name(name).has_value() || !platform::final_name_of_temporary(name).empty();
}

/// Returns why the file must stay even if its writer has ended; empty when it may be removed.
std::string reason_of_content(platform::Directory const& directory, std::string const& name) {
  if (!parse_state_file_name(name)) return {};  // only crossrank writes temporaries with these names
  return identify(directory, name).why;
}

}  // namespace

std::vector<CleanedFile> clean_workspace(std::filesystem::path const& path, CleanOptions options) {
  std::string const operation = "clean";
  auto const directory = platform::Directory::open(path, operation);
  std::vector<CleanedFile> found;
  for (auto& name : directory.names(operation)) {
    bool const is_state = parse_state_file_name(name).has_value();
    struct stat status {};
    if (!is_looked_at(name, options) ||
        platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    CleanedFile file{
        .name = std::move(name), .is_state = is_state, .bytes = static_cast<std::uint64_t>(status.st_size)};
    // Holds the lock until the file is removed: a writer that has just created it notices the loss and creates another.
    auto const probe = S_ISREG(status.st_mode) ? probe_writer(directory, file.name) : WriterProbe{};
    file.why = S_ISREG(status.st_mode) ? reason_to_keep(probe.writer, options) : "not a regular file";
    if (file.why.empty()) file.why = reason_of_content(directory, file.name);
    if (file.why.empty()) {
      try {
        if (!options.dry_run) (void)directory.remove(file.name, operation);
        file.removed = true;
      } catch (IoError const& error) {
        file.why = error.info().system;
      }
    }
    found.push_back(std::move(file));
  }
  return found;
}

}  // namespace crossrank::workspace
