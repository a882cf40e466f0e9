#include "tests/support/emulated_gpu/cuda/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"

namespace emulated {
namespace {

struct Fault {
  unsigned long long at = 0;  // value of the counter at which it happens
  int code = 0;
};

struct Log {
  std::mutex mutex;
  std::map<std::string, unsigned long long> counts;   // since the last reset
  std::map<std::string, unsigned long long> amounts;  // since the last reset
  std::map<std::string, unsigned long long> totals;   // since the start, for faults
  std::map<std::string, std::vector<Fault>> faults;
  unsigned long long reports = 0;
  std::string last_report;
  unsigned long long kernels = 0;
  unsigned long long hang_at = 0;
  std::atomic<unsigned> release_hangs{0};
  std::array<std::atomic<long>, 6> live{};
  std::atomic<pid_t> owner{0};
};

void append_line(std::string const& path, std::string const& line) {
  int const fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  static_cast<void>(!::write(fd, line.data(), line.size()));  // one write, so that processes do not mix their lines
  ::close(fd);
}

Log* make_log() {
  auto* const log = new Log;  // lives as long as the process
  for (auto const& entry : split(options().fail, ',')) {
    auto const parts = split(entry, ':');
    if (parts.size() == 3) log->faults[parts[0]].push_back({std::stoull(parts[1]), std::stoi(parts[2])});
  }
  if (!options().hang.empty()) log->hang_at = std::stoull(options().hang);
  return log;
}

Log& log() {
  static Log* const instance = make_log();
  return *instance;
}

constexpr std::array<char const*, 6> kind_names = {"allocation", "host", "stream", "event", "graph", "pool"};

/// What a thread has asked for last.
struct Question {
  void const* event;
  unsigned in_vain;
};
thread_local Question question{};

/// Calls between two questions of a thread that waits.
bool belongs_to_a_question(char const* name) {
  static constexpr std::array<char const*, 5> calls = {"cuEventQuery", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
                                                       "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"};
  for (auto const* call : calls) {
    if (std::strcmp(name, call) == 0) return true;
  }
  return false;
}

CUresult take_fault(Log& l, std::string const& name, unsigned long long count) {
  auto const found = l.faults.find(name);
  if (found == l.faults.end()) return CUDA_SUCCESS;
  for (auto const& fault : found->second) {
    if (fault.at != count) continue;
    if (fault.code < 0) ::kill(::getpid(), -fault.code);
    return static_cast<CUresult>(fault.code);
  }
  return CUDA_SUCCESS;
}

/// Returns how many objects of a kind a process may leave when it ends.
long allowed_at_exit(char const* kind) {
  for (auto const& entry : split(options().kept, ',')) {
    auto const parts = split(entry, ':');
    if (parts[0] == kind) return parts.size() == 2 ? std::stol(parts[1]) : std::numeric_limits<long>::max();
  }
  return 0;
}

/// Objects that are alive beyond those that may be alive at exit.
struct Leaks {
  long count = 0;
  std::string text;
};

Leaks find_leaks() {
  Leaks leaks;
  for (std::size_t i = 0; i < kind_names.size(); ++i) {
    long const n = log().live[i].load();
    if (n <= allowed_at_exit(kind_names[i])) continue;
    leaks.count += n - allowed_at_exit(kind_names[i]);
    leaks.text += " " + std::to_string(n) + " " + kind_names[i];
  }
  return leaks;
}

__attribute__((destructor)) void check_at_exit() {
  Log& l = log();
  if (l.owner.load() != ::getpid()) return;
  if (auto const leaks = find_leaks(); leaks.count > 0) report("alive at exit:" + leaks.text);
  if (l.reports != 0 && options().exit_code != 0) ::_exit(options().exit_code);
}

}  // namespace

CUresult log_call(char const* name) {
  Log& l = log();
  if (!belongs_to_a_question(name)) question = {};
  {
    std::lock_guard const lock(l.mutex);
    ++l.counts[name];
    if (auto const fault = take_fault(l, name, ++l.totals[name]); fault != CUDA_SUCCESS) return fault;
  }
  if (!options().log.empty()) append_line(options().log, std::to_string(::getpid()) + " " + name + "\n");
  return CUDA_SUCCESS;
}

void log_amount(char const* name, unsigned long long amount) {
  std::lock_guard const lock(log().mutex);
  log().amounts[name] += amount;
}

void note_question(void const* event, bool passed) {
  // A caller that only polls, and comes back later, makes other calls in between.
  constexpr unsigned looks_of_a_wait = 8;
  if (event != question.event) question = {event, 0};
  if (!passed) {
    ++question.in_vain;
    return;
  }
  bool const waited = question.in_vain >= looks_of_a_wait;
  question = {};
  if (waited) static_cast<void>(log_call("polled_wait"));
}

void report(std::string const& text) {
  auto const line = "emulated_gpu: process " + std::to_string(::getpid()) + ": " + text + "\n";
  std::fputs(line.c_str(), stderr);
  if (!options().report.empty()) append_line(options().report, line);
  {
    Log& l = log();
    std::lock_guard const lock(l.mutex);
    ++l.reports;
    l.last_report = text;
  }
  if (options().abort_on_report) std::abort();
}

CUresult begin_kernel(std::function<bool()> const& aborted) {
  Log& l = log();
  bool hang = false;
  CUresult fault = CUDA_SUCCESS;
  {
    std::lock_guard const lock(l.mutex);
    ++l.kernels;
    hang = l.kernels == l.hang_at;
    fault = take_fault(l, "kernel", l.kernels);
  }
  unsigned const release = l.release_hangs.load();
  while (hang && l.release_hangs.load() == release && !(aborted && aborted())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fault;
}

void born(Kind kind) { ++log().live[static_cast<std::size_t>(kind)]; }
void died(Kind kind) { --log().live[static_cast<std::size_t>(kind)]; }

bool forked() {
  pid_t const owner = log().owner.load();
  return owner != 0 && owner != ::getpid();
}
void claim_process() {
  pid_t none = 0;
  log().owner.compare_exchange_strong(none, ::getpid());
}

}  // namespace emulated

using namespace emulated;

int emulated_log_call(char const* name) { return log_call(name); }
void emulated_log_event(char const* name) { static_cast<void>(log_call(name)); }
void emulated_report(char const* text) { report(text); }

unsigned long long emulated_count(char const* name) {
  std::lock_guard const lock(log().mutex);
  if (name != nullptr) {
    auto const found = log().counts.find(name);
    return found == log().counts.end() ? 0 : found->second;
  }
  unsigned long long sum = 0;
  for (auto const& [key, count] : log().counts) sum += count;
  return sum;
}

unsigned long long emulated_amount(char const* name) {
  std::lock_guard const lock(log().mutex);
  auto const found = log().amounts.find(name);
  return found == log().amounts.end() ? 0 : found->second;
}

void emulated_reset_counts() {
  std::lock_guard const lock(log().mutex);
  log().counts.clear();
  log().amounts.clear();
}

unsigned long long emulated_report_count() {
  std::lock_guard const lock(log().mutex);
  return log().reports;
}

void emulated_last_report(char* text, std::size_t size) {
  std::lock_guard const lock(log().mutex);
  if (size != 0) std::snprintf(text, size, "%s", log().last_report.c_str());
}

void emulated_reset_reports() {
  std::lock_guard const lock(log().mutex);
  log().reports = 0;
  log().last_report.clear();
}

unsigned long long emulated_live(char const* kind) {
  unsigned long long sum = 0;
  for (std::size_t i = 0; i < kind_names.size(); ++i) {
    if (kind == nullptr || std::strcmp(kind, kind_names[i]) == 0) sum += static_cast<unsigned long long>(log().live[i]);
  }
  return sum;
}

unsigned long long emulated_leaks() { return static_cast<unsigned long long>(find_leaks().count); }

void emulated_fail_call(char const* name, unsigned long long nth, int code) {
  std::lock_guard const lock(log().mutex);
  log().faults[name].push_back({log().totals[name] + nth, code});
}
void emulated_hang_kernel(unsigned long long nth) {
  std::lock_guard const lock(log().mutex);
  log().hang_at = log().kernels + nth;
}
void emulated_release_hangs() { ++log().release_hangs; }
void emulated_fail_kernel(unsigned long long nth, int code) {
  std::lock_guard const lock(log().mutex);
  log().faults["kernel"].push_back({log().kernels + nth, code});
}
