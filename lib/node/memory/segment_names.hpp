#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::node {

/// What tells one start of one job from all others on this host.
struct JobKey {
  std::string job_id{};  ///< of the launcher; random only under `crossrank run`
  std::string master{};  ///< "MASTER_ADDR:MASTER_PORT"
  std::string step{};    ///< step and restart number
  /// 128-bit digest of the key and this user, as 32 hex digits: what stands in socket names and greetings.
  [[nodiscard]] std::string digest() const;
  /// "job ID", or where its ranks meet when it has no id: for errors.
  [[nodiscard]] std::string text() const { return "job " + (job_id.empty() ? "at " + master : job_id); }
};

/// 128 random bits.
[[nodiscard]] std::array<std::uint64_t, 2> random_nonce();

/// "/crossrank.<uid>.<32 random hex digits>": a name in /dev/shm that nobody can have taken.
[[nodiscard]] std::string unique_segment_name();

/// "crossrank.<uid>.": what all named segments of this user begin with.
[[nodiscard]] std::string segment_prefix();

/// Removes this user's named segments that no living process holds: what a start that was killed left in /dev/shm.
/// Each user of a named segment holds a shared lock on it, so an orphan is one whose exclusive lock is free.
/// Returns the names removed. Errors end the sweep quietly: somebody else's sweep may be under way.
std::vector<std::string> sweep_names();

}  // namespace crossrank::node
