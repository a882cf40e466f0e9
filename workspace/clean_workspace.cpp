#include "workspace/clean_workspace.hpp"

#include <memory>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/byte_source.hpp"
#include "lib/codec/state_image.hpp"
#include "lib/platform/atomic_file.hpp"
#include "lib/platform/directory.hpp"
#include "workspace/liveness.hpp"
#include "workspace/nfs_files.hpp"

namespace crossrank::workspace {
namespace {

std::string reason_to_keep(Writer writer, bool force) {
  switch (writer) {
    case Writer::dead: return {};
    case Writer::alive: return "its writer is alive";
    case Writer::unknown: break;
  }
  return force ? std::string() : "nobody can tell whether its writer is alive: no lock could be asked for";
}

/// Whether the image is a result, such as `crossrank convert --to images` writes: nobody holds it, and it stays.
bool is_result(platform::Directory const& directory, std::string const& name) {
  try {
    auto const fd = directory.open_file(name, "clean");
    if (!fd) return false;
    auto const file = std::make_shared<codec::FileSource const>(name, fd->get());
    return codec::StateImage::open(file).identity().job == codec::result_job;
  } catch (Error const&) {
    return false;  // damaged or no image: what a killed job may have left
  }
}

}  // namespace

std::vector<CleanedFile> clean_workspace(std::filesystem::path const& path, CleanOptions options) {
  std::string const operation = "clean";
  auto const directory = platform::Directory::open(path, operation);
  std::vector<CleanedFile> found;
  for (auto& name : directory.names(operation)) {
    bool const ours = parse_state_file(name) || !platform::final_name_of_temporary(name).empty();
    struct stat status {};
    if (!ours || platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    CleanedFile file{.name = std::move(name), .bytes = static_cast<std::uint64_t>(status.st_size)};
    // Held until the name is gone: a writer that has just made the file sees that it is lost, and makes another.
    auto const probe = S_ISREG(status.st_mode) ? probe_writer(directory, file.name) : Probe{};
    file.why = S_ISREG(status.st_mode) ? reason_to_keep(probe.writer, options.force) : "not a regular file";
    if (file.why.empty() && is_result(directory, file.name)) file.why = "a part of a finished checkpoint";
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
