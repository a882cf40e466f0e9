#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/platform/directory.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::checkpoint {

inline constexpr char const* restart_hint = "start again without `resume`";

inline constexpr char const* write_operation = "checkpoint write";

// What a job keeps in its folder beside the files of the result, whose names never start with a dot.
inline constexpr char const* lock_name = ".lock";
inline constexpr char const* commit_record_name = ".committing";
/// The name of a file of the result while it is in the job's folder, which has no folders inside.
[[nodiscard]] std::string staged_name(std::string const& name);
/// Where a file that made way for one of the result waits.
[[nodiscard]] inline std::string backup_name(std::string const& name) { return ".old." + staged_name(name); }
/// The note that a file is finished.
[[nodiscard]] inline std::string finished_marker_name(std::string const& name) { return ".finished." + name; }

[[nodiscard]] inline std::string folder_name(std::string const& id) { return ".crossrank-" + id; }
[[nodiscard]] inline bool is_job_folder(std::string const& name) { return name.starts_with(folder_name({})); }

enum class Entry : std::uint8_t { nothing, file, folder };

/// What a directory has under a name; a link is a file. `IoError` when the file system does not tell.
[[nodiscard]] Entry entry_at(platform::Directory const& directory, std::string const& name);

/// Takes the lock of a job's folder; nothing when a living process has it.
[[nodiscard]] std::optional<platform::Fd> take_lock(platform::Directory const& work);
/// Whether the lock that `take_lock` returned keeps others out: not where the file system has no locks.
[[nodiscard]] bool lock_is_effective(platform::Directory const& work);
/// Whether a folder that has the name of a job's is one: a job makes its lock file first.
[[nodiscard]] bool belongs_to_job(platform::Directory const& work);

[[nodiscard]] std::uint64_t bytes_in(platform::Directory const& work);

/// The error for what a killed job noted in `file` and is damaged since; `got` says how.
[[nodiscard]] FormatError unreadable_record(std::string const& file, std::string got, std::string hint);

/// `FormatError` with that hint for what is no JSON.
[[nodiscard]] Json load_json(platform::Directory const& work, std::string const& name, char const* hint);
void save_json(platform::Directory const& work, std::string const& name, Json const& value);

/// Removes all files of a job but its lock; the plan first, so that nobody takes the rest for what is to be committed.
void clear_job(platform::Directory const& work);
/// Removes the folder of a job in `out` and all in it.
void remove_job(platform::Directory const& out, platform::Directory const& work);

}  // namespace crossrank::checkpoint
