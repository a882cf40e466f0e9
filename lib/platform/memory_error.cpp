#include "lib/platform/memory_error.hpp"

#include <cerrno>

#include <sys/resource.h>

#include "lib/platform/cgroup.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::platform {

IoError memory_error(std::string const& operation) {
  std::string limits = std::to_string(usable_memory()) + " bytes for this machine or control group";
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    limits = std::to_string(space.rlim_cur) + " bytes of address space (ulimit -v), " + limits;
  return IoError({.operation = operation,
                  .message = "there is not enough memory",
                  .got = "limits of " + limits,
                  .system = errno_text(ENOMEM),
                  .hint = "raise the limit, or use fewer processes and threads",
                  .system_errno = ENOMEM});
}

}  // namespace crossrank::platform
