#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <crossrank/collective/check_level.hpp>

namespace crossrank {

/// Says whether the ranks of a job are processes or threads.
enum class RankKind : std::uint8_t {
  process,  ///< each rank is a process
  thread,   ///< all ranks are threads of this process; each calls `connect` with its own `rank`
};

/// Says who advances the non-blocking calls of a rank.
enum class ProgressMode : std::uint8_t {
  caller,  ///< the thread that started a call, whenever it waits or calls `test` or `wait`
  thread,  ///< also a thread of the library, one for each job, so that calls on CPU tensors advance while the caller
           ///< computes
};

/// Says how `connect` joins the job, and how long the group's calls may wait.
struct ConnectOptions {
  /// "shm", "mpi", "composite", "fake" or the name of a plugin beside the library. Empty: `CROSSRANK_BACKEND`, else the
  /// first backend that can serve the ranks.
  std::string backend{};
  /// Longest wait for a rank that makes no progress. `CROSSRANK_TIMEOUT` overrides it.
  std::chrono::milliseconds timeout{300'000};
  /// Longest wait for all ranks to call `connect`. `CROSSRANK_CONNECT_TIMEOUT` overrides it. Empty: 120 s, or
  /// `CROSSRANK_TIMEOUT` if that is shorter.
  std::optional<std::chrono::milliseconds> connect_timeout{};
  /// Time for which a failed start stays known, so that late ranks learn why it failed. One of the ranks
  /// stays in `connect` until then, or until all have come. Empty: until `connect_timeout`.
  std::optional<std::chrono::milliseconds> linger{};
  /// Replaces `timeout` while the awaited rank runs the caller's code: the receiver of an open range, or a rank in a
  /// guard. `CROSSRANK_USER_LIMIT` overrides it.
  std::chrono::milliseconds user_limit{21'600'000};
  std::optional<int> rank{};               ///< replaces the launcher's rank
  std::optional<int> world_size{};         ///< replaces the launcher's world size
  std::string job_id{};                    ///< replaces the launcher's job id
  RankKind rank_kind = RankKind::process;  ///< processes, or threads of one process
  /// Limit of the shared memory of all ranks of a node together, in bytes. Empty: `CROSSRANK_ARENA_CAP`, else half of
  /// the node's memory.
  std::optional<std::uint64_t> arena_cap{};
  std::optional<CheckLevel> check{};  ///< empty: `CheckLevel::local`. `CROSSRANK_CHECK` overrides it
  /// Selects who advances non-blocking calls. A second `connect` to the same job can add the progress thread, but only
  /// while no other thread uses the job. It cannot remove the thread.
  ProgressMode progress = ProgressMode::caller;
};

}  // namespace crossrank
