#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace crossrank::checkpoint {

/// Whether a job found its output folder or made it.
enum class OutputFolder : std::uint8_t { found, made_by_job };

/// Removes the folder of a job whose rank 0 has died on this host, and an empty output folder that the job made. Called
/// by every other rank of the host.
///
/// If rank 0 had begun the commit, completes it. Waits until the kernel has released the lock of the dead process,
/// which takes as long as it frees the memory of that process. Leaves the folder alone if rank 0 lives, or if the file
/// system has no locks, so that nobody knows; then the next job in this output or `crossrank clean` removes it.
void remove_orphaned_job(std::filesystem::path const& out, std::string const& id, OutputFolder output) noexcept;

}  // namespace crossrank::checkpoint
