#include "lib/platform/process_state.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/fd.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::platform {

ProcessState process_state(std::int32_t pid, std::uint64_t its_namespace) noexcept {
  auto const own_namespace = pid_namespace();
  if (own_namespace == 0 || its_namespace != own_namespace || pid <= 0) return ProcessState::unknown;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  Fd const fd(system().openat(AT_FDCWD, path.data(), O_RDONLY | O_CLOEXEC, 0));
  if (!fd) return errno == ENOENT ? ProcessState::gone : ProcessState::unknown;
  std::array<char, 512> buffer{};
  auto const bytes = system().read(fd.get(), buffer.data(), buffer.size());
  if (bytes <= 0) return ProcessState::gone;
  std::string_view const text(buffer.data(), as_size(bytes));
  // The program's name is in parentheses before the state. It may contain parentheses and spaces itself.
  auto const name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return ProcessState::unknown;
  switch (text[name_end + 2]) {
    case 'T':
    case 't': return ProcessState::stopped;
    case 'D': return ProcessState::blocked;
    case 'Z':
    case 'X': return ProcessState::gone;
    default: return ProcessState::running;
  }
}

std::uint64_t pid_namespace() noexcept {
  struct stat status {};
  if (system().fstatat(AT_FDCWD, "/proc/self/ns/pid", &status, 0) != 0) return 0;
  return status.st_ino;
}

}  // namespace crossrank::platform
