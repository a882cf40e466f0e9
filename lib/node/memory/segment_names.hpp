#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::node {

/// Distinguishes one start of one job from all others on this host.
struct JobKey {
  std::string job_id{};  ///< of the launcher; random only under `crossrank run`
  std::string master{};  ///< "MASTER_ADDR:MASTER_PORT"
  std::string step{};    ///< step and restart number
  /// Returns a 128-bit digest of the key and this user as 32 hex digits, for socket names and greetings.
  [[nodiscard]] std::string digest() const;
  /// Returns "job ID", or the address of the rendezvous when the job has no id. For errors.
  [[nodiscard]] std::string text() const { return "job " + (job_id.empty() ? "at " + master : job_id); }
};

/// Returns 128 random bits.
[[nodiscard]] std::array<std::uint64_t, 2> random_nonce();

/// Returns "/crossrank.<uid>.<32 random hex digits>": a name in /dev/shm that cannot be taken already.
[[nodiscard]] std::string unique_segment_name();

/// Returns "crossrank.<uid>.", the prefix of all named segments of this user.
[[nodiscard]] std::string segment_prefix();

/// Removes this user's named segments that no living process holds, left in /dev/shm by starts that were killed. Each
/// user of a named segment holds a shared lock on it, so an exclusive lock can be taken only on an orphan. Returns the
/// removed names. Ends quietly on errors: another process may be sweeping too.
std::vector<std::string> sweep_names();

}  // namespace crossrank::node
