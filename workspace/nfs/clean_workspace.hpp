#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace crossrank::workspace {

struct CleanOptions {
  bool dry_run = false;  ///< say what would go, remove nothing
  bool force = false;    ///< also what no lock speaks for: for file systems without locks, when all jobs have ended
  bool all = false;      ///< also states whose writer exited cleanly, which it left on purpose
};

/// What cleaning did with one file of ours.
struct CleanedFile {
  std::string name{};
  bool is_state = false;  ///< a published state; else a temporary
  std::uint64_t bytes = 0;
  bool removed = false;  ///< or would be, in a dry run
  std::string why{};     ///< why it stays; empty for what goes
};

/// Removes from a workspace directory what killed jobs left: state files and temporaries of ours, nothing else.
///
/// A state stays when its writer exited cleanly, unless `all` is given. A file that only has a name of ours stays in
/// any case, and so does a part of a finished checkpoint: the header tells. A live writer holds a lock on each
/// temporary while it writes and on each published file as long as its workspace stands; the kernel drops it when the
/// process ends. A file goes only when its exclusive lock is to be had. Where the file system has no locks nobody can
/// tell, and files stay unless `force` is given. Returns every file of ours, in the order of their names. `IoError`
/// when the directory cannot be read.
[[nodiscard]] std::vector<CleanedFile> clean_workspace(std::filesystem::path const& path, CleanOptions options = {});

}  // namespace crossrank::workspace
