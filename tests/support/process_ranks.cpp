#include "tests/support/process_ranks.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "tests/support/leak_check.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/spawn_rank.hpp"

namespace crossrank::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds since(Clock::time_point start) { return std::chrono::duration_cast<milliseconds>(Clock::now() - start); }

// Appends what is in the pipe to `to`. Returns false when no process can write to the pipe any more.
bool drain(int fd, std::string& to) {
  std::array<char, 16384> buffer{};
  while (true) {
    auto const got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      to.append(buffer.data(), as_size(got));
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
}

bool has_line(std::string const& text, std::string_view marker) {
  auto at = text.find(marker);
  while (at != std::string::npos) {
    bool const begins = at == 0 || text[at - 1] == '\n';
    if (begins && text.find('\n', at) != std::string::npos) return true;
    at = text.find(marker, at + 1);
  }
  return false;
}

std::string outcome_line(int rank, RankOutcome const& outcome) {
  std::ostringstream line;
  line << "rank " << rank << ": ";
  if (outcome.signal != 0) {
    line << "signal " << outcome.signal << (outcome.dumped_core ? " (core)" : "");
  } else {
    line << "exit " << outcome.exit_code;
  }
  line << " after " << outcome.elapsed.count() << " ms\n";
  if (!outcome.out.empty()) line << "  out: " << outcome.out << (outcome.out.back() == '\n' ? "" : "\n");
  if (!outcome.err.empty()) line << "  err: " << outcome.err << (outcome.err.back() == '\n' ? "" : "\n");
  return line.str();
}

}  // namespace

struct ProcessRanks::Rank {
  pid_t pid = -1;
  int out = -1;
  int err = -1;
  bool running = false;
  RankOutcome outcome{};

  Rank() = default;
  Rank(Rank const&) = delete;
  Rank& operator=(Rank const&) = delete;
  ~Rank() {
    if (out >= 0) ::close(out);
    if (err >= 0) ::close(err);
  }
};

struct ProcessRanks::PendingSignal {
  RankSignal what{};
  bool armed = false;
  Clock::time_point due{};
};

bool JobOutcome::ok() const noexcept {
  return !timed_out && leaks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [](RankOutcome const& r) { return r.ok(); });
}

std::string JobOutcome::text() const {
  std::string all = timed_out ? "the deadline passed; the rest was killed\n" : "";
  for (std::size_t r = 0; r < ranks.size(); ++r) all += outcome_line(static_cast<int>(r), ranks[r]);
  for (auto const& leak : leaks) all += "left behind: " + leak + "\n";
  return all;
}

ProcessRanks::ProcessRanks(int count, std::string_view scenario, RankOptions options)
    : options_(std::move(options)), leaks_(std::make_unique<LeakCheck>()), started_(Clock::now()) {
  if (options_.job_id.empty()) options_.job_id = random_job_id();
  for (auto const& wanted : options_.signals) {
    pending_.push_back({.what = wanted, .armed = wanted.marker.empty(), .due = started_ + wanted.after});
  }
  try {
    for (int r = 0; r < count; ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      start(*ranks_.back(), scenario, r, count);
    }
  } catch (...) {
    kill_all();
    throw;
  }
}

ProcessRanks::~ProcessRanks() { kill_all(); }

void ProcessRanks::start(Rank& rank, std::string_view scenario, int number, int count) {
  auto const id = std::to_string(number);
  auto const size = std::to_string(count);
  RankProgram program{.scenario = std::string(scenario), .arguments = options_.arguments};
  program.environment = {
      {"CROSSRANK_TEST_RANK", id}, {"CROSSRANK_TEST_WORLD_SIZE", size}, {"CROSSRANK_JOB_ID", options_.job_id}};
  if (options_.launcher_variables) {
    program.environment.insert({{"RANK", id}, {"WORLD_SIZE", size}, {"LOCAL_RANK", id}, {"LOCAL_WORLD_SIZE", size}});
  }
  for (auto const& [name, value] : options_.environment) program.environment.insert_or_assign(name, value);
  if (auto const own = options_.rank_environment.find(number); own != options_.rank_environment.end()) {
    for (auto const& [name, value] : own->second) program.environment.insert_or_assign(name, value);
  }
  auto const child = spawn_rank(program);
  rank.pid = child.pid;
  rank.out = child.out;
  rank.err = child.err;
  rank.running = true;
}

std::string const& ProcessRanks::job_id() const noexcept { return options_.job_id; }

pid_t ProcessRanks::pid(int rank) const { return ranks_.at(as_size(rank))->pid; }

bool ProcessRanks::running(int rank) const { return ranks_.at(as_size(rank))->running; }

void ProcessRanks::signal(int rank, int number) {
  auto const& target = *ranks_.at(as_size(rank));
  if (target.running) ::kill(target.pid, number);
}

bool ProcessRanks::wait_for_line(int rank, std::string_view marker, milliseconds limit) {
  auto const end = Clock::now() + scaled_timeout(limit);
  auto& target = *ranks_.at(as_size(rank));
  while (!has_line(target.outcome.out, marker)) {
    if (!target.running || Clock::now() >= end) return false;
    pump(milliseconds(20));
  }
  return true;
}

bool ProcessRanks::wait_for_exit(int rank, milliseconds limit) {
  auto const end = Clock::now() + scaled_timeout(limit);
  while (running(rank) && Clock::now() < end) pump(milliseconds(20));
  return !running(rank);
}

JobOutcome ProcessRanks::wait() {
  JobOutcome job{.job_id = options_.job_id};
  auto const end = started_ + scaled_timeout(options_.deadline);
  auto const any_running = [this] {
    return std::any_of(ranks_.begin(), ranks_.end(), [](auto const& r) { return r->running; });
  };
  while (any_running() && Clock::now() < end) pump(milliseconds(20));
  job.timed_out = any_running();
  // After a clean end nothing has been killed, so a leaked process is still there to be found.
  if (!job.timed_out) job.leaks = leaks_->findings(options_.job_id);
  kill_all();
  if (job.timed_out) job.leaks = leaks_->findings(options_.job_id);
  for (auto const& rank : ranks_) job.ranks.push_back(rank->outcome);
  return job;
}

void ProcessRanks::pump(milliseconds slice) {
  send_due_signals();
  std::vector<pollfd> fds;
  for (auto const& rank : ranks_) {
    if (rank->out >= 0) fds.push_back({.fd = rank->out, .events = POLLIN, .revents = 0});
    if (rank->err >= 0) fds.push_back({.fd = rank->err, .events = POLLIN, .revents = 0});
  }
  // Exits and due signals do not wake `poll`, so look again after at most 2 ms.
  ::poll(fds.data(), fds.size(), static_cast<int>(std::min(slice, milliseconds(2)).count()));
  for (auto const& rank : ranks_) {
    collect_output(*rank);
    collect_exit(*rank);
  }
}

void ProcessRanks::send_due_signals() {
  auto const now = Clock::now();
  for (auto& entry : pending_) {
    auto const watched = as_size(entry.what.marker_rank >= 0 ? entry.what.marker_rank : entry.what.rank);
    if (!entry.armed && has_line(ranks_.at(watched)->outcome.out, entry.what.marker)) {
      entry.armed = true;
      entry.due = now + entry.what.after;
    }
    if (entry.armed && entry.due <= now) signal(entry.what.rank, entry.what.signal);
  }
  std::erase_if(pending_, [now](PendingSignal const& entry) { return entry.armed && entry.due <= now; });
}

void ProcessRanks::collect_output(Rank& rank) {
  for (auto const& [fd, to] : {std::pair{&rank.out, &rank.outcome.out}, std::pair{&rank.err, &rank.outcome.err}}) {
    if (*fd >= 0 && !drain(*fd, *to)) {
      ::close(*fd);
      *fd = -1;
    }
  }
}

void ProcessRanks::collect_exit(Rank& rank) {
  if (!rank.running) return;
  int status = 0;
  pid_t const got = ::waitpid(rank.pid, &status, WNOHANG);
  if (got != rank.pid) return;
  rank.running = false;
  rank.outcome.elapsed = since(started_);
  if (WIFSIGNALED(status)) {
    rank.outcome.signal = WTERMSIG(status);
    rank.outcome.dumped_core = WCOREDUMP(status);
  } else {
    rank.outcome.exit_code = WEXITSTATUS(status);
  }
  collect_output(rank);
}

void ProcessRanks::kill_all() noexcept {
  for (auto const& rank : ranks_) {
    if (rank->pid > 0) ::kill(-rank->pid, SIGKILL);
  }
  for (auto const& rank : ranks_) {
    while (rank->running) {
      int status = 0;
      if (::waitpid(rank->pid, &status, 0) < 0 && errno == EINTR) continue;
      rank->running = false;
      rank->outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      rank->outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      rank->outcome.elapsed = since(started_);
    }
    if (rank->pid > 0) collect_output(*rank);
  }
}

JobOutcome run_ranks(int count, std::string_view scenario, RankOptions options) {
  return ProcessRanks(count, scenario, std::move(options)).wait();
}

}  // namespace crossrank::test
