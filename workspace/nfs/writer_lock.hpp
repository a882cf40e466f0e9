#pragma once
#include <cstdint>
#include <string>

#include "lib/platform/files/directory.hpp"

namespace crossrank::workspace {

/// What is known about the writer of a file.
enum class WriterState : std::uint8_t {
  dead,      ///< its process ended without marking the file as finished
  alive,     ///< it holds the lock
  finished,  ///< its workspace exited cleanly and left the file on purpose
  unknown,   ///< cannot be determined
};

/// Takes a shared lock on a published file. The kernel releases it when the process ends, for whatever reason. Returns
/// an empty descriptor on a file system without locks.
[[nodiscard]] platform::Fd lock_file_shared(platform::Directory const& directory, std::string const& name) noexcept;

struct WriterProbe {
  WriterState writer = WriterState::unknown;
  platform::Fd
      file_lock{};  ///< of a dead writer's file: while it is held, no other process starts to write a file of that name
};

/// Probes the writer by trying to take the exclusive lock, which every live writer prevents. Returns `unknown` when the
/// file cannot be opened for writing or the file system has no locks. A caller that removes the file must do so while
/// it holds the returned lock.
///
/// `mark_finished` marks a file by taking away its owner's write permission.
[[nodiscard]] WriterProbe probe_writer(platform::Directory const& directory, std::string const& name) noexcept;

/// Marks a published file as left on purpose. `file_lock` is the lock that `lock_file_shared` returned for it.
void mark_finished(platform::Directory const& directory, std::string const& name,
                   platform::Fd const& file_lock) noexcept;

}  // namespace crossrank::workspace
