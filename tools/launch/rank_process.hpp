#pragma once
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "lib/platform/fd.hpp"

namespace crossrank::tools {

/// What all ranks of a job share.
struct JobEnvironment {
  std::string job_id{};
  int world_size = 1;
};

/// Where a rank's standard streams go.
struct RankStreams {
  int in = -1;
  int out = -1;
  int err = -1;
};

/// A started rank, or why there is none.
struct RankStart {
  pid_t pid = -1;
  int failure = 0;       ///< errno; 0 when the program runs
  bool program = false;  ///< the failure is the program's (exec), not the system's (fork)
};

/// 128 random bits in hexadecimal.
[[nodiscard]] std::string random_job_id();

/// Starts `program` (found in PATH, as a shell would) as rank `rank`, leader of a process group of its own, killed by
/// the kernel when this process dies. `signal_mask` is what the program starts with.
///
/// The variables of other launchers are taken away where `connect()` would read them, so that only one job is
/// announced.
[[nodiscard]] RankStart start_rank(std::vector<std::string> const& program, int rank, JobEnvironment const& job,
                                   RankStreams const& streams, sigset_t const& signal_mask);

}  // namespace crossrank::tools
