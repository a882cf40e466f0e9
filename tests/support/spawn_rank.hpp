#pragma once
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crossrank::test {

/// How to start a copy of this binary that runs one scenario.
struct RankProgram {
  std::string scenario{};
  std::vector<std::string> arguments{};
  std::map<std::string, std::string> environment{};  ///< added to ours, without the variables of launchers
};

/// A running process. The read ends of its output do not block.
struct RankChild {
  pid_t pid = -1;
  int out = -1;
  int err = -1;
};

/// Starts `program` in its own process group. It is killed when this process ends.
[[nodiscard]] RankChild spawn_rank(RankProgram const& program);

/// Returns 32 random hexadecimal digits.
[[nodiscard]] std::string random_job_id();

}  // namespace crossrank::test
