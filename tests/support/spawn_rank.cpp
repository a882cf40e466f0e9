#include "tests/support/spawn_rank.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "lib/platform/random.hpp"

namespace crossrank::test {
namespace {

[[noreturn]] void fail(char const* what) { throw std::system_error(errno, std::generic_category(), what); }

// If a launcher started the test, its variables must not reach the test's own ranks.
bool belongs_to_launcher(std::string_view entry) {
  constexpr std::array prefixes{"OMPI_",        "PMIX_",       "PMI_",        "SLURM_",      "TORCHELASTIC_",
                                "CROSSRANK_",   "RANK=",       "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=",
                                "MASTER_ADDR=", "MASTER_PORT="};
  return std::any_of(prefixes.begin(), prefixes.end(), [entry](std::string_view p) { return entry.starts_with(p); });
}

std::vector<std::string> environment_for(RankProgram const& program) {
  std::vector<std::string> entries;
  for (char** at = environ; *at != nullptr; ++at) {
    std::string_view const entry = *at;
    auto const name = std::string(entry.substr(0, entry.find('=')));
    if (!belongs_to_launcher(entry) && !program.environment.contains(name)) entries.emplace_back(entry);
  }
  for (auto const& [name, value] : program.environment) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Runs between fork and exec, so it may only make async-signal-safe calls.
[[noreturn]] void become_rank(pid_t parent, int out, int err, char* const* arguments, char* const* environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(98);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int const null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(97);
}

}  // namespace

RankChild spawn_rank(RankProgram const& program) {
  std::vector<std::string> arguments{"rank-of-test", "--crossrank-rank-scenario=" + program.scenario};
  arguments.insert(arguments.end(), program.arguments.begin(), program.arguments.end());
  auto environment = environment_for(program);
  auto const argv = pointers(arguments);
  auto const envp = pointers(environment);
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) fail("pipe2");
  pid_t const parent = ::getpid();
  pid_t const pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) become_rank(parent, out[1], err[1], argv.data(), envp.data());
  ::setpgid(pid, pid);  // in the parent too, so that the group exists before a signal is sent to it
  ::close(out[1]);
  ::close(err[1]);
  ::fcntl(out[0], F_SETFL, O_NONBLOCK);
  ::fcntl(err[0], F_SETFL, O_NONBLOCK);
  return {.pid = pid, .out = out[0], .err = err[0]};
}

std::string random_job_id() {
  constexpr auto const* operation = "make a job id";
  return platform::random_hex(operation) + platform::random_hex(operation);
}

}  // namespace crossrank::test
