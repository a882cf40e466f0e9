#pragma once
#include <cstdint>

namespace crossrank::platform {

/// The state of a process as the kernel reports it.
enum class ProcessState : std::uint8_t {
  unknown,  ///< another PID namespace, or no `/proc`
  running,  ///< or asleep
  stopped,  ///< by a signal or a debugger
  blocked,  ///< inside the kernel, where no signal reaches it: a file server that does not answer, for example
  gone,
};

/// Returns the state of process `pid` of a PID namespace. The namespace is given by its inode, 0 where that is not
/// known.
[[nodiscard]] ProcessState process_state(std::int32_t pid, std::uint64_t pid_namespace) noexcept;

/// Returns the inode of this process's PID namespace, 0 where it is not known. Process ids mean nothing outside their
/// namespace.
[[nodiscard]] std::uint64_t pid_namespace() noexcept;

}  // namespace crossrank::platform
