#include "tools/launch/orphan_guard.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/platform/system.hpp"
#include "tools/launch/child_processes.hpp"

namespace crossrank::tools {
namespace {

using platform::Fd;
using std::chrono::milliseconds;

constexpr auto guard_name = "crossrank-guard";
constexpr milliseconds poll_interval{5};
constexpr int max_polls = 2'000;
constexpr int quiet_polls =
    3;  // consecutive polls without a find: a process that is just being forked shows up in the next one
constexpr milliseconds farewell{2'000};

/// Returns whether a process belongs to the job. Skips other guards, because each has its own job to end.
bool belongs_to(std::filesystem::path const& process, std::string const& entry) {
  auto const environment = process_text(process / "environ");
  bool const carries =
      environment.starts_with(entry) || environment.find(std::string(1, '\0') + entry) != std::string::npos;
  return carries && process_text(process / "comm") != std::string(guard_name) + "\n";
}

/// Kills every process with `entry` in its environment. Returns false when there was none.
bool kill_all_with(std::string const& entry) {
  bool found = false;
  std::error_code ignored;
  for (std::filesystem::directory_iterator at("/proc", ignored), end; at != end; at.increment(ignored)) {
    auto const name = at->path().filename().string();
    pid_t pid = -1;
    auto const parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || pid == ::getpid()) continue;
    if (belongs_to(at->path(), entry)) found = ::kill(pid, SIGKILL) == 0 || found;
  }
  return found;
}

void end_job(std::vector<pid_t> const& groups, std::string const& entry) {
  int quiet = 0;
  for (int poll = 0; poll < max_polls && quiet < quiet_polls; ++poll) {
    bool found = false;
    // The kernel does not reuse the number of a group that has members. The launcher has removed empty groups.
    for (pid_t const group : groups) found = (poll == 0 && ::kill(-group, SIGKILL) == 0) || found;
    found = kill_all_with(entry) || found;
    quiet = found ? 0 : quiet + 1;
    platform::system().sleep(poll_interval);
  }
}

/// A message that is no group number (a negative number means "forget"): the launcher exits and nothing is left to do.
constexpr pid_t all_gone = 0;

/// Makes a child that sends no signal when it ends. `waitpid` without `__WALL` does not see it, so that the launcher's
/// waits for the job do not end because of it, or wait for it. An orphan becomes an ordinary child of its new parent.
/// Where the system refuses that, the guard is a child like those of the program before.
pid_t fork_unseen() {
  auto const made = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL));
  bool const refused = made < 0 && (errno == EINVAL || errno == ENOSYS || errno == EPERM);
  return refused ? ::fork() : made;
}

[[noreturn]] void guard(Fd const& end, std::string const& job_id) {
  ::setsid();
  ::prctl(PR_SET_NAME, guard_name);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Do not keep the launcher's streams open after the launcher's end.
  if (Fd const null(::open("/dev/null", O_RDWR | O_CLOEXEC)); null) {
    for (int const stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), stream);
  }
  std::vector<pid_t> groups;
  for (;;) {
    pid_t group = all_gone;
    auto const got = ::read(end.get(), &group, sizeof group);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof group) break;
    if (group == all_gone) ::_exit(0);
    if (group < 0) {
      std::erase(groups, -group);
    } else {
      groups.push_back(group);
    }
  }
  end_job(groups, "CROSSRANK_JOB_ID=" + job_id + std::string(1, '\0'));
  ::_exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard(std::string const& job_id) {
  std::array<int, 2> ends{};
  auto const fail = [] {
    throw std::system_error(errno, std::generic_category(), "cannot start the process that guards the job");
  };
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) fail();
  ours_ = Fd(ends[0]);
  Fd theirs(ends[1]);
  pid_ = fork_unseen();
  if (pid_ < 0) fail();
  if (pid_ == 0) {
    (void)ours_.close();
    guard(theirs, job_id);
  }
}

OrphanGuard::~OrphanGuard() {
  say(all_gone);
  pollfd closed{.fd = ours_.get(), .events = POLLIN, .revents = 0};
  bool const ends = ::poll(&closed, 1, static_cast<int>(farewell.count())) > 0;
  while (::waitpid(pid_, nullptr, ends ? __WALL : __WALL | WNOHANG) < 0 && errno == EINTR) {
  }
}

void OrphanGuard::watch(pid_t group) const noexcept { say(group); }

void OrphanGuard::forget(pid_t group) const noexcept { say(-group); }

void OrphanGuard::say(pid_t number) const noexcept {
  // If the guard was killed, the job continues without one.
  [[maybe_unused]] auto const sent = ::send(ours_.get(), &number, sizeof number, MSG_NOSIGNAL);
}

}  // namespace crossrank::tools
