#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"
#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {

inline constexpr char const* restart_hint = "run again without `resume`";

// Files of a job in its folder, besides its commit record. No file of a result has such a name: only `.metadata` begins
// with a dot.
inline constexpr char const* lock_name = ".lock";
inline constexpr char const* parts_record_name = ".parts";   ///< the folder belongs to a plan of parts
inline constexpr char const* published_name = ".published";  ///< the result of the plan is in the output
inline constexpr char const* run_prefix = ".run.";           ///< locked file of a running part
inline constexpr char const* part_file_prefix = ".part.";    ///< file that a running part writes
/// Returns the name of an output file inside the job's folder, which has no subfolders.
[[nodiscard]] std::string job_file_name(std::string const& name);
/// Returns the name inside the job's folder of a file that the result replaces.
[[nodiscard]] inline std::string backup_name(std::string const& name) { return ".old." + job_file_name(name); }
/// Returns the name of the marker of a finished file.
[[nodiscard]] inline std::string finished_marker_name(std::string const& name) { return ".finished." + name; }

/// Returns the name of the folder of job `id`.
[[nodiscard]] inline std::string folder_name(std::string const& id) { return std::string(job_folder_prefix) + id; }
/// Returns whether a name is that of a job's folder.
[[nodiscard]] inline bool is_job_folder(std::string const& name) { return name.starts_with(job_folder_prefix); }

/// Kinds of directory entries; a link is a file.
enum class Entry : std::uint8_t { nothing, file, folder };

/// Returns the kind of entry that a directory has under a name. Throws `IoError`.
[[nodiscard]] Entry entry_at(platform::Directory const& directory, std::string const& name);

/// Takes the lock of a job's folder. Returns nothing if a running process holds it.
[[nodiscard]] std::optional<platform::Fd> take_lock(platform::Directory const& work);
/// Returns whether the held lock excludes other processes. It does not if the file system has no locks.
[[nodiscard]] bool lock_is_effective(platform::Directory const& work);
/// Returns whether a folder with the name of a job's folder is one, that is, it is empty or has a lock file. A job
/// creates its lock file first.
[[nodiscard]] bool belongs_to_job(platform::Directory const& work);

/// Sizes of all files in a job's folder together.
struct FolderBytes {
  std::uint64_t on_disk = 0;  ///< space that they take; a compressing file system needs less than their size
  std::uint64_t written = 0;  ///< sizes, or the space where it is more
};
[[nodiscard]] FolderBytes bytes_in(platform::Directory const& work);

/// Returns the error for a damaged record of a killed job in `file`; `got` describes the damage.
[[nodiscard]] FormatError unreadable_record(std::string const& file, std::string got, std::string hint);

/// Reads a JSON file in a job's folder. Throws `FormatError` with `hint` if it is not JSON.
[[nodiscard]] Json load_json(platform::Directory const& work, std::string const& name, char const* hint);
/// Writes a JSON file to a job's folder, atomically and durably. Throws `IoError`.
void save_json(platform::Directory const& work, std::string const& name, Json const& value);

/// Removes all files of a job except its lock and the mark of a published result. The commit record goes first, so that
/// no process tries to commit the remaining files.
void clear_job(platform::Directory const& work);
/// Removes the folder of a job in `out` with all its files, also those that a running part adds meanwhile.
void remove_job(platform::Directory const& out, platform::Directory const& work);

}  // namespace crossrank::checkpoint
