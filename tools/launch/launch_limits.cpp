#include "tools/launch/launch_limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

namespace crossrank::tools {

std::string refused_by_limits(int ranks) {
  auto const count = static_cast<rlim_t>(ranks);
  rlimit processes{};
  rlimit files{};
  ::getrlimit(RLIMIT_NPROC, &processes);
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (::geteuid() != 0 && processes.rlim_cur != RLIM_INFINITY && count >= processes.rlim_cur)
    return "this user may have " + std::to_string(processes.rlim_cur) + " processes (ulimit -u)";
  rlim_t const needed = 2 * count + 32;
  if (files.rlim_cur != RLIM_INFINITY && needed > files.rlim_cur) {
    return std::to_string(needed) + " open files are needed, " + std::to_string(files.rlim_cur) +
           " are allowed (ulimit -n)";
  }
  return {};
}

}  // namespace crossrank::tools
