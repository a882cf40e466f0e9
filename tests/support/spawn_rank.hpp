#pragma once
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace crossrank::test {

/// A copy of this binary that is to run one scenario.
struct RankProgram {
  std::string scenario{};
  std::vector<std::string> arguments{};
  std::map<std::string, std::string> environment{};  ///< added to ours, from which other launchers' variables are taken
};

/// A process under way; the reading ends of its output do not block.
struct RankChild {
  pid_t pid = -1;
  int out = -1;
  int err = -1;
};

/// Starts `program` in a process group of its own; it is killed when this process ends.
[[nodiscard]] RankChild spawn_rank(RankProgram const& program);

/// 32 random hexadecimal digits.
[[nodiscard]] std::string random_job_id();

}  // namespace crossrank::test
