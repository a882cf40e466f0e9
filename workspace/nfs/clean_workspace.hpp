#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>

namespace crossrank::workspace {

struct CleanOptions {
  bool dry_run = false;  ///< only report what would be removed
  bool force = false;    ///< also remove files whose lock cannot be tested; use it on file systems without locks, after
                         ///< all jobs have ended
  bool all = false;      ///< also remove states that a writer left on purpose when it exited cleanly
  std::string_view temporaries_of{};  ///< look only at temporaries of the file with this name; empty: at all files
};

/// What `clean_workspace` did with one file.
struct CleanedFile {
  std::string name{};
  bool is_state = false;  ///< a published state; false for a temporary
  std::uint64_t bytes = 0;
  bool removed = false;  ///< removed, or would be removed in a dry run
  std::string why{};     ///< why the file stays; empty for a removed file
};

/// Removes the state files and temporaries that killed jobs left in a workspace directory. Touches no other file.
///
/// Keeps a state whose writer exited cleanly, unless `all` is given. Keeps a file whose header does not
/// match its name, or shows that the file is part of a finished checkpoint. A live writer holds a lock on each
/// temporary while it writes it, and on each published file for the lifetime of its workspace; the kernel releases the
/// lock when the process ends. A file is removed only under its exclusive lock. On a file system without locks, files
/// stay unless `force` is given.
///
/// Returns every file that it has looked at, sorted by name. Throws `IoError` when the directory cannot be read.
///
/// Exported for crossrank_checkpoint, a library beside this one.
[[nodiscard]] CROSSRANK_EXPORT std::vector<CleanedFile> clean_workspace(std::filesystem::path const& path,
                                                                        CleanOptions options = {});

}  // namespace crossrank::workspace
