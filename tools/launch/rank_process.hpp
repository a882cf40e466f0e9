#pragma once
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {

/// The environment that all ranks of a job share.
struct JobEnvironment {
  std::string job_id{};
  int world_size = 1;
};

/// The standard streams of a rank.
struct RankStreams {
  int in = -1;
  int out = -1;
  int err = -1;
};

/// A started rank, or the reason why it could not be started.
struct RankStart {
  pid_t pid = -1;
  int failure = 0;       ///< errno; 0 when the program runs
  bool program = false;  ///< the program failed to start (exec), not the process (fork)
};

/// Returns 128 random bits in hexadecimal.
[[nodiscard]] std::string random_job_id();

/// Starts `program` as rank `rank`. Finds it in PATH like a shell. The rank leads its own process group, starts with
/// `signal_mask`, and is killed by the kernel when this process dies.
///
/// Removes the variables of other launchers that `connect()` would read, so that the environment describes only one
/// job.
[[nodiscard]] RankStart start_rank(std::vector<std::string> const& program, int rank, JobEnvironment const& job,
                                   RankStreams const& streams, sigset_t const& signal_mask);

}  // namespace crossrank::tools
