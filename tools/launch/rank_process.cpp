#include "tools/launch/rank_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/platform/random.hpp"

namespace crossrank::tools {
namespace {

// Variables from which `connect()` would read another launcher's job, or the job in which this command runs.
constexpr std::array foreign_names{
    "CROSSRANK_JOB_ID",
    "CROSSRANK_LAUNCHER",
    "CROSSRANK_STEP",
    "CROSSRANK_RESTART",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_ID",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "TORCHELASTIC_RESTART_COUNT",
};

bool is_foreign(std::string_view entry) {
  auto const name = entry.substr(0, entry.find('='));
  return std::any_of(foreign_names.begin(), foreign_names.end(),
                     [name](std::string_view other) { return name == other; });
}

std::vector<std::string> environment_of(int rank, JobEnvironment const& job) {
  std::vector<std::string> entries;
  for (char** at = environ; *at != nullptr; ++at) {
    if (!is_foreign(*at)) entries.emplace_back(*at);
  }
  auto const number = std::to_string(rank);
  auto const size = std::to_string(job.world_size);
  entries.push_back("CROSSRANK_JOB_ID=" + job.job_id);
  entries.push_back("CROSSRANK_LAUNCHER=" + std::to_string(::getpid()));
  entries.push_back("RANK=" + number);
  entries.push_back("WORLD_SIZE=" + size);
  entries.push_back("LOCAL_RANK=" + number);
  entries.push_back("LOCAL_WORLD_SIZE=" + size);
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

struct Image {
  char* const* arguments;
  char* const* environment;
};

[[noreturn]] void become(Image const& image, RankStreams const& streams, sigset_t const& mask, pid_t parent,
                         int report) {
  auto const report_and_exit = [report] {
    int const reason = errno;
    // The reader treats a short or missing report as a failure too.
    [[maybe_unused]] auto const wrote = ::write(report, &reason, sizeof reason);
    ::_exit(127);
  };
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the prctl call
  if (::dup2(streams.in, STDIN_FILENO) < 0 || ::dup2(streams.out, STDOUT_FILENO) < 0 ||
      ::dup2(streams.err, STDERR_FILENO) < 0) {
    report_and_exit();
  }
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execvpe(image.arguments[0], image.arguments, image.environment);
  report_and_exit();
  ::_exit(127);
}

/// Returns ENOENT for an EACCES of a program that no directory of PATH contains. exec reports EACCES when any directory
/// of PATH cannot be searched; shells report "not found" then.
int reason_of(int failure, std::string const& program) {
  if (failure != EACCES || program.find('/') != std::string::npos) return failure;
  auto const* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    struct stat found {};
    auto const file = (folder.empty() ? "." : folder) + "/" + program;
    if (::stat(file.c_str(), &found) == 0) return EACCES;
  }
  return ENOENT;
}

}  // namespace

std::string random_job_id() {
  constexpr auto const* operation = "make a job id";
  return platform::random_hex(operation) + platform::random_hex(operation);
}

RankStart start_rank(std::vector<std::string> const& program, int rank, JobEnvironment const& job,
                     RankStreams const& streams, sigset_t const& signal_mask) {
  auto arguments = program;
  auto environment = environment_of(rank, job);
  auto const argv = pointers_to(arguments);
  auto const envp = pointers_to(environment);
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0) return {.failure = errno};
  platform::Fd const reading(report[0]);
  platform::Fd writing(report[1]);
  pid_t const parent = ::getpid();
  pid_t const pid = ::fork();
  if (pid < 0) return {.failure = errno};
  if (pid == 0)
    become({.arguments = argv.data(), .environment = envp.data()}, streams, signal_mask, parent, writing.get());
  ::setpgid(pid, pid);  // also in the parent: a signal to the group may be sent before the child has run
  (void)writing.close();
  int failure = 0;
  ssize_t got = 0;
  do {
    got = ::read(reading.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return {.pid = pid};  // exec closed the pipe
  return {.pid = pid, .failure = failure == 0 ? EIO : reason_of(failure, program.front()), .program = true};
}

}  // namespace crossrank::tools
