#include "tools/launch/job_processes.hpp"

#include <cerrno>
#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/launch/child_processes.hpp"

namespace crossrank::tools {
namespace {

/// Returns whether this process has a child, running or ended. Costs one system call.
bool has_child() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

}  // namespace

// If the kernel refuses, orphans of the ranks go to init and can no longer be signalled; the ranks still can.
JobProcesses::JobProcesses(pid_t guard) : guard_(guard) {
  // Most launchers have no child yet. The search in /proc reads a file of each process of the machine.
  if (has_child())
    for (pid_t const child : child_processes()) foreign_.insert(child);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

void JobProcesses::add(pid_t rank) { running_.insert(rank); }

bool JobProcesses::reap(Reaped& out) {
  pid_t pid = 0;
  do {
    pid = ::waitpid(-1, &out.status, WNOHANG);
  } while (pid < 0 && errno == EINTR);
  if (pid < 0 || (pid == 0 && running_.empty() && !foreign_.empty() && own_children().empty())) gone_ = true;
  if (pid <= 0) return false;
  foreign_.erase(pid);
  running_.erase(pid);
  out.pid = pid;
  return true;
}

std::vector<pid_t> JobProcesses::own_children() const {
  auto children = child_processes();
  std::erase_if(children, [this](pid_t child) { return child == guard_ || foreign_.contains(child); });
  return children;
}

void JobProcesses::signal_ranks(int number) const {
  for (pid_t const rank : running_) ::kill(-rank, number);
}

void JobProcesses::signal_all(int number) const {
  signal_ranks(number);
  for (pid_t const child : own_children()) {
    if (running_.contains(child)) continue;
    // The process group of an orphan was created by the job, unless it is our own.
    pid_t const group = ::getpgid(child);
    ::kill(group > 1 && group != ::getpgrp() ? -group : child, number);
  }
}

}  // namespace crossrank::tools
