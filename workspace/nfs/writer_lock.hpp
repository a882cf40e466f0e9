#pragma once
#include <cstdint>
#include <string>

#include "lib/platform/directory.hpp"

namespace crossrank::workspace {

/// What is known of the writer of a file.
enum class WriterState : std::uint8_t {
  dead,      ///< its process was killed, or has not said otherwise
  alive,     ///< it holds the file
  finished,  ///< its workspace exited cleanly and left the file on purpose
  unknown,   ///< nobody can tell
};

/// Holds a published file for this process: a shared lock, which ends with the process however it ends. An empty one
/// where the file system has no locks; then nobody can tell, and nobody is told.
[[nodiscard]] platform::Fd lock_file_shared(platform::Directory const& directory, std::string const& name) noexcept;

struct WriterProbe {
  WriterState writer = WriterState::unknown;
  platform::Fd file_lock{};  ///< of a dead writer's file: while it is held, nobody begins to write a file of that name
};

/// Asks by trying for the exclusive lock, which every live writer prevents. `unknown` where the file cannot be opened
/// for writing or the file system has no locks. Who removes the file does so under the lock.
///
/// A finished state is a file that its owner cannot write: that is how `mark_finished` marks it.
[[nodiscard]] WriterProbe probe_writer(platform::Directory const& directory, std::string const& name) noexcept;

/// Marks a published file as left on purpose. `file_lock` is what `lock_file_shared` returned for it.
void mark_finished(platform::Directory const& directory, std::string const& name,
                   platform::Fd const& file_lock) noexcept;

}  // namespace crossrank::workspace
