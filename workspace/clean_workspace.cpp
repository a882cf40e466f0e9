#include "workspace/clean_workspace.hpp"

#include <utility>

#include <crossrank/error.hpp>

#include "lib/platform/atomic_file.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/liveness.hpp"
#include "workspace/nfs_files.hpp"
#include "workspace/state_file_owner.hpp"

namespace crossrank::workspace {
namespace {

std::string reason_to_keep(Writer writer, CleanOptions options) {
  switch (writer) {
    case Writer::dead: return {};
    case Writer::alive: return "its writer is alive";
    case Writer::finished:
      return options.all ? "" : "its writer ended in order and left it on purpose (`all` removes it)";
    case Writer::unknown: break;
  }
  return options.force ? "" : "nobody can tell whether its writer is alive: no lock could be asked for";
}

/// Why a file stays whoever wrote it; empty when nothing speaks for it.
std::string reason_of_content(platform::Directory const& directory, std::string const& name) {
  if (!parse_state_file(name)) return {};  // the name of a temporary is nobody else's
  return identify(directory, name).why;
}

}  // namespace

std::vector<CleanedFile> clean_workspace(std::filesystem::path const& path, CleanOptions options) {
  std::string const operation = "clean";
  auto const directory = platform::Directory::open(path, operation);
  std::vector<CleanedFile> found;
  for (auto& name : directory.names(operation)) {
    bool const is_state = parse_state_file(name).has_value();
    bool const ours = is_state || !platform::final_name_of_temporary(name).empty();
    struct stat status {};
    if (!ours || platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    CleanedFile file{
        .name = std::move(name), .is_state = is_state, .bytes = static_cast<std::uint64_t>(status.st_size)};
    // Held until the name is gone: a writer that has just made the file sees that it is lost, and makes another.
    auto const probe = S_ISREG(status.st_mode) ? probe_writer(directory, file.name) : Probe{};
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
