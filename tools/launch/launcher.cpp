#include "tools/launch/launcher.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/core/text/terminal_text.hpp"
#include "tools/cli/end_request.hpp"
#include "tools/cli/interrupt_handler.hpp"
#include "tools/cli/standard_streams.hpp"
#include "tools/launch/connect_monitor.hpp"
#include "tools/launch/job_processes.hpp"
#include "tools/launch/job_outcome.hpp"
#include "tools/launch/launch_limits.hpp"
#include "tools/launch/line_prefixer.hpp"
#include "tools/launch/orphan_guard.hpp"
#include "tools/launch/output_queue.hpp"
#include "tools/launch/rank_process.hpp"
#include "tools/launch/signal_fd.hpp"
#include "tools/launch/terminal_input.hpp"

namespace crossrank::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int unwritten = 3;  // what a command returns by itself when it cannot write its output
// Interval of sweeps after the kill time: orphans appear as their parents die.
constexpr milliseconds sweep_interval{20};

bool same_file(int one, int other) {
  struct stat a {};
  struct stat b {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

class Launch {
 public:
  explicit Launch(LaunchOptions const& options);
  int run();

 private:
  struct Stream {
    platform::Fd fd{};
    LinePrefixer lines;
    OutputQueue* to = nullptr;
    bool is_answer = false;  ///< standard output, which may share its queue with the other stream
  };
  struct Rank {
    int number = 0;
    pid_t pid = 0;
  };

  void start_all();
  bool start(int number, int input);
  void refuse(int code, std::string const& why);
  [[nodiscard]] bool finished() const;
  void step();
  [[nodiscard]] int timeout() const;
  [[nodiscard]] int exit_code() const;
  void take_signals();
  void pass_on(int number);
  void stop_with_ranks();
  void take_exits();
  void forget_empty_groups();
  void tell_ends();
  void explain_ends();
  void take_output(Stream& stream);
  /// Returns whether a failed write to `queue` ends the job.
  [[nodiscard]] bool ends_the_job(OutputQueue const& queue) const;
  void end_soon();
  void escalate();
  void say(std::string const& sentence);

  LaunchOptions const& options_;
  JobEnvironment job_;
  OrphanGuard guard_;  // declared first: the guard inherits our signals
  SignalFd signals_;
  JobProcesses processes_{guard_.pid()};
  Clock::time_point const started_ = Clock::now();
  OutputQueue out_{STDOUT_FILENO};
  OutputQueue err_{STDERR_FILENO};
  bool const one_output_ = same_file(STDOUT_FILENO, STDERR_FILENO);
  std::optional<TerminalInput> terminal_{};
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  JobOutcome outcome_;
  ConnectMonitor connect_monitor_{job_.job_id, options_.ranks};
  std::vector<pid_t> ended_groups_;   // process groups of ended ranks that may have members left
  std::vector<RankExit> unreported_;  // ends of ranks that the ranks in `connect()` have not been told yet
  bool answered_ = false;             // a rank has written to standard output
  int refused_ = 0;                   // exit code when not all ranks could be started
  std::vector<int> sent_;             // signals that we sent to the ranks
  std::optional<Clock::time_point> term_at_{};
  std::optional<Clock::time_point> kill_at_{};
  Clock::time_point swept_{};
  EndRequest end_request_{};
};

Launch::Launch(LaunchOptions const& options)
    : options_(options), job_{.job_id = random_job_id(), .world_size = options.ranks}, guard_(job_.job_id) {}

int Launch::run() {
  start_all();
  while (!finished()) step();
  explain_ends();
  if (outcome_.failed() && refused_ == 0 && !(options_.raw && outcome_.by_exit_code())) say(outcome_.summary());
  for (auto const& queue : {std::cref(out_), std::cref(err_)}) {
    int const failure = queue.get().failure();
    if (failure != 0 && failure != EPIPE) say(std::string("cannot write the output: ") + std::strerror(failure));
  }
  int code = exit_code();
  // A rank that the signal has not reached ends with the code of SIGINT.
  if (options_.raw && outcome_.by_exit_code() && code == 128 + SIGINT) code = outcome_.code_of_signal().value_or(code);
  if (code != 0 && options_.if_silent && !answered_) out_.waiting() += options_.if_silent(code, outcome_.summary());
  while (!err_.empty() || !out_.empty()) step();
  bool const reader_left = out_.failure() == EPIPE || err_.failure() == EPIPE;
  if (code == 0 && (ends_the_job(out_) || ends_the_job(err_))) return reader_left ? 128 + SIGPIPE : unwritten;
  // Only the rank that wrote knows why its job stopped. The others may have ended first, with the code of SIGINT.
  if (options_.raw && reader_left && outcome_.by_exit_code() && code > 128) return 128 + SIGPIPE;
  return code;
}

/// Messages that a full disk has no space for are lost, as those of a process without a launcher are.
bool Launch::ends_the_job(OutputQueue const& queue) const {
  return &queue == &err_ ? queue.failure() == EPIPE : queue.broken();
}

int Launch::exit_code() const {
  if (refused_ != 0) return refused_;
  auto const lost = options_.lost_code;
  int const code = lost != 0 && outcome_.by_external_signal() ? lost : outcome_.exit_code();
  // A rank may lose its peers to the signal that ends the job before that signal reaches it.
  return lost != 0 && code == lost && outcome_.requested_by() != 0 ? 128 + outcome_.requested_by() : code;
}

void Launch::start_all() {
  platform::Fd typed;
  if (::isatty(STDIN_FILENO) == 1) terminal_.emplace(typed);
  platform::Fd const null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) return refuse(126, std::string("cannot open /dev/null: ") + std::strerror(errno));
  for (int r = 0; r < options_.ranks; ++r) {
    int const first = typed.valid() ? typed.get() : STDIN_FILENO;
    if (!start(r, r == 0 ? first : null.get())) return;
  }
}

bool Launch::start(int number, int input) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) {
    refuse(126, std::string("cannot create a pipe for rank ") + std::to_string(number) + ": " + std::strerror(errno) +
                    " (see ulimit -n)");
    return false;
  }
  platform::Fd const out_writer(out[1]);
  platform::Fd const err_writer(err[1]);
  auto const prefix = options_.prefix ? "[" + std::to_string(number) + "]" : std::string();
  streams_.push_back({.fd = platform::Fd(out[0]), .lines = LinePrefixer(prefix), .to = &out_, .is_answer = true});
  streams_.push_back({.fd = platform::Fd(err[0]), .lines = LinePrefixer(prefix), .to = one_output_ ? &out_ : &err_});
  ::fcntl(out[0], F_SETFL, O_NONBLOCK);
  ::fcntl(err[0], F_SETFL, O_NONBLOCK);
  // A rank of our own command that has no handler yet would end without having told the others.
  auto const mask = options_.raw ? signals_.mask_without_interrupts() : signals_.original_mask();
  auto const rank = start_rank(options_.program, number, job_, {.in = input, .out = out[1], .err = err[1]}, mask);
  if (rank.failure == 0) {
    processes_.add(rank.pid);
    guard_.watch(rank.pid);
    ranks_.push_back({.number = number, .pid = rank.pid});
    return true;
  }
  std::string const reason = std::strerror(rank.failure);
  if (rank.program) {
    refuse(rank.failure == ENOENT ? 127 : 126, "cannot run " + terminal_text(options_.program.front()) + ": " + reason);
  } else {
    refuse(126, "cannot start rank " + std::to_string(number) + " of " + std::to_string(options_.ranks) + ": " +
                    reason + " (the system's or this user's limit of processes: see ulimit -u)");
  }
  return false;
}

void Launch::refuse(int code, std::string const& why) {
  refused_ = code;
  say(why);
  kill_at_ = Clock::now();
}

bool Launch::finished() const {
  bool const read_out = std::none_of(streams_.begin(), streams_.end(), [](Stream const& s) { return s.fd.valid(); });
  return processes_.gone() && read_out && out_.empty() && err_.empty();
}

void Launch::step() {
  std::vector<pollfd> fds{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
  auto const watch = [&fds](int fd, short events) { fds.push_back({.fd = fd, .events = events, .revents = 0}); };
  for (auto const& stream : streams_) {
    if (stream.fd.valid() && !stream.to->full()) watch(stream.fd.get(), POLLIN);
  }
  for (auto const* const queue : {&out_, &err_}) {
    if (!queue->empty()) watch(queue->fd(), POLLOUT);
  }
  bool const typing = terminal_ && processes_.any_rank() && terminal_->wants_terminal();
  if (typing) watch(STDIN_FILENO, POLLIN);
  std::size_t const terminal_at = fds.size() - 1;
  if (terminal_ && terminal_->blocked_on() >= 0) watch(terminal_->blocked_on(), POLLOUT);
  connect_monitor_.add_to(fds);
  ::poll(fds.data(), fds.size(), timeout());
  take_signals();
  take_exits();
  connect_monitor_.serve();
  for (auto& stream : streams_) {
    if (stream.fd.valid() && !stream.to->full()) take_output(stream);
  }
  if (typing && fds[terminal_at].revents != 0) terminal_->read_terminal();
  if (terminal_) terminal_->flush();
  out_.flush();
  err_.flush();
  // When the reader of our output has left, the ranks get SIGPIPE, as they would without the launcher.
  std::erase_if(streams_, [this](Stream const& s) { return ends_the_job(*s.to); });
  escalate();
}

int Launch::timeout() const {
  auto const now = Clock::now();
  auto wait = milliseconds(60'000);
  for (auto const& at : {term_at_, kill_at_}) {
    if (at) wait = std::min(wait, std::chrono::ceil<milliseconds>(*at - now));
  }
  if (kill_at_ && *kill_at_ <= now) wait = sweep_interval;
  if (processes_.gone()) wait = std::max(wait, sweep_interval);  // only slow readers of our output remain
  return static_cast<int>(std::max(wait, milliseconds(0)).count());
}

void Launch::take_signals() {
  while (auto const number = signals_.next()) {
    if (*number == SIGTSTP) {
      stop_with_ranks();
    } else if (*number != SIGCHLD) {
      pass_on(*number);
    }
  }
}

void Launch::pass_on(int number) {
  // The ranks of our own command take all of `interrupt_signals` as requests to end.
  bool const ends = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT ||
                    (options_.raw && std::ranges::find(interrupt_signals, number) != interrupt_signals.end());
  if (ends && end_request_.repeats(number)) return;
  processes_.signal_ranks(number);
  if (number != SIGCONT && number != SIGWINCH) sent_.push_back(number);
  if (!ends) return;
  outcome_.end_requested(number);
  if (number != SIGINT) processes_.signal_ranks(SIGCONT);   // a stopped rank would not see it
  if (!end_request_.take(number)) kill_at_ = Clock::now();  // second request: kill at once
  end_soon();
}

void Launch::stop_with_ranks() {
  processes_.signal_ranks(SIGTSTP);
  auto const stopped = Clock::now();
  ::raise(SIGSTOP);
  auto const away = Clock::now() - stopped;
  if (term_at_) *term_at_ += away;
  if (kill_at_) *kill_at_ += away;
}

void Launch::take_exits() {
  JobProcesses::Reaped reaped;
  while (processes_.reap(reaped)) {
    auto const rank = std::find_if(ranks_.begin(), ranks_.end(), [&](Rank const& r) { return r.pid == reaped.pid; });
    if (rank == ranks_.end()) continue;
    bool const by_launcher =
        WIFSIGNALED(reaped.status) && std::find(sent_.begin(), sent_.end(), WTERMSIG(reaped.status)) != sent_.end();
    RankExit const end{.rank = rank->number,
                       .pid = reaped.pid,
                       .status = reaped.status,
                       .after = std::chrono::duration_cast<milliseconds>(Clock::now() - started_),
                       .by_launcher = by_launcher};
    outcome_.add(end);
    unreported_.push_back(end);
    ranks_.erase(rank);  // its process id may be reused
    ended_groups_.push_back(reaped.pid);
    if (outcome_.failed()) end_soon();
  }
  forget_empty_groups();
  tell_ends();
  // All ranks have ended, so the processes that they left running have no work any more.
  if (ranks_.empty() && !processes_.gone() && !kill_at_) {
    processes_.signal_all(SIGTERM);
    kill_at_ = Clock::now() + options_.grace;
  }
}

// A process that a rank leaves behind becomes a child of the launcher, so the launcher reaps the last member of a
// group.
void Launch::forget_empty_groups() {
  std::erase_if(ended_groups_, [this](pid_t group) {
    if (::kill(-group, 0) == 0 || errno != ESRCH) return false;
    guard_.forget(group);
    return true;
  });
}

// Waits for the whole process group: a rank that returned 0 may have left a process that connects in its place.
void Launch::tell_ends() {
  std::erase_if(unreported_, [this](RankExit const& end) {
    if (end.status == 0 && ::kill(-end.pid, 0) == 0) return false;
    connect_monitor_.notify_exit(end.rank, end.pid, end.status, end.after);
    return true;
  });
}

void Launch::explain_ends() {
  if (!outcome_.failed()) return;
  connect_monitor_.serve();
  outcome_.annotate([this](RankExit& end) {
    end.before_connect = connect_monitor_.ended_before_connect(end.rank);
    end.caused_by = connect_monitor_.cause_of(end.rank);
    // A rank may have caught another rank's error and continued: only an error that ended both counts.
    auto const thrower = connect_monitor_.thrower_of(end.rank);
    if (!end.caused_by && thrower && outcome_.failed(*thrower)) end.caused_by = thrower;
  });
}

void Launch::take_output(Stream& stream) {
  std::array<char, 65536> buffer{};
  auto const got = ::read(stream.fd.get(), buffer.data(), buffer.size());
  if (got > 0) {
    std::string_view const bytes(buffer.data(), as_size(got));
    answered_ = answered_ || stream.is_answer;
    if (options_.raw) {
      stream.to->waiting() += bytes;
    } else {
      stream.lines.add(bytes, stream.to->waiting());
    }
    return;
  }
  // An empty pipe counts as closed once the job is gone, because an unrelated process may hold the other end.
  bool const more_may_come = got < 0 && (errno == EINTR || (errno == EAGAIN && !processes_.gone()));
  if (more_may_come) return;
  stream.lines.finish(stream.to->waiting());
  (void)stream.fd.close();
}

void Launch::end_soon() {
  if (kill_at_) return;
  auto const now = Clock::now();
  term_at_ = now + options_.grace / 2;
  kill_at_ = now + options_.grace;
}

void Launch::escalate() {
  auto const now = Clock::now();
  bool const late = kill_at_ && *kill_at_ <= now;
  if (processes_.gone()) {
    // Only the reader of our output is slow. Wait for it, but not beyond the grace time.
    if (late && end_request_.signal() != 0) {
      out_.waiting().clear();
      err_.waiting().clear();
    }
  } else if (late) {
    if (now - swept_ < sweep_interval) return;
    swept_ = now;
    sent_.push_back(SIGKILL);
    processes_.signal_all(SIGKILL);
  } else if (term_at_ && *term_at_ <= now) {
    term_at_.reset();
    sent_.push_back(SIGTERM);
    processes_.signal_all(SIGTERM);
    processes_.signal_all(SIGCONT);
  }
}

void Launch::say(std::string const& sentence) {
  auto& queue = one_output_ ? out_ : err_;
  queue.waiting() += options_.command + ": " + sentence + "\n";
}

}  // namespace

int launch(LaunchOptions const& options) {
  open_missing_standard_streams();
  if (auto const refusal = refused_by_limits(options.ranks); !refusal.empty()) {
    std::fprintf(stderr, "%s: -n %d: %s\n", options.command.c_str(), options.ranks, refusal.c_str());
    return 2;
  }
  try {
    return Launch(options).run();
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", options.command.c_str(), error.what());
    return 126;
  }
}

}  // namespace crossrank::tools
