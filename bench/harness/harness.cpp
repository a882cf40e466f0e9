#include "bench/harness/harness.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <crossrank/statistics.hpp>

namespace crossrank::bench {
namespace {

/// Opens the tracepoint of all system calls. Returns -1 when this user or kernel does not allow counting them.
int open_tracepoint() {
  std::uint64_t id = 0;
  for (char const* const path : {"/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
                                 "/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id"}) {
    std::ifstream in(path);
    if (in >> id) break;
  }
  if (id == 0) return -1;
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_TRACEPOINT;
  attributes.size = sizeof attributes;
  attributes.config = id;
  return static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

double percentile(std::vector<double> const& sorted, double part) {
  auto const at = static_cast<std::size_t>(std::lround(part * static_cast<double>(sorted.size() - 1)));
  return sorted[std::min(at, sorted.size() - 1)];
}

void fill_times(Row& row, std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  row.min_us = samples.front();
  row.median_us = percentile(samples, 0.5);
  row.p99_us = percentile(samples, 0.99);
}

void fill_costs(Row& row, UsageMeter const& meter, Usage const& before, Usage const& after, std::size_t calls) {
  auto const each = [calls](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(to - from) / static_cast<double>(calls);
  };
  row.calls = calls;
  row.faults = each(before.minor_faults, after.minor_faults);
  row.switches = each(before.switches, after.switches);
  row.system_calls = each(before.system_calls, after.system_calls);
  row.copied = each(before.bytes_copied, after.bytes_copied);
  row.system_call_source = meter.system_call_source();
}

/// Returns a field of a file such as /proc/self/status, such as "VmHWM:", in bytes.
double status_bytes(std::string const& field, char const* file = "/proc/self/status") {
  std::ifstream status(file);
  for (std::string word; status >> word;) {
    if (word != field) continue;
    double kibibytes = 0.0;
    status >> kibibytes;
    return kibibytes * 1024.0;
  }
  fail(std::string(file) + " has no " + field);
}

nlohmann::ordered_json to_json(Row const& row) {
  nlohmann::ordered_json all{{"path", row.path},
                             {"who", row.who},
                             {"variant", row.variant},
                             {"rank", row.rank},
                             {"ranks", row.ranks},
                             {"bytes", row.bytes},
                             {"reads", row.reads},
                             {"calls", row.calls},
                             {"min_us", row.min_us},
                             {"median_us", row.median_us},
                             {"p99_us", row.p99_us},
                             {"faults", row.faults},
                             {"switches", row.switches},
                             {"system_calls", row.system_calls},
                             {"copied", row.copied},
                             {"payload", row.payload},
                             {"system_call_source", row.system_call_source},
                             {"peak_bytes", row.peak_bytes},
                             {"processor_us", row.processor_us}};
  if (!row.backend.empty()) all["backend"] = row.backend;
  if (!row.counts.empty()) all["counts"] = row.counts;
  if (!row.limits.empty()) all["limits"] = row.limits;
  return all;
}

}  // namespace

UsageMeter::UsageMeter() : tracepoint_(open_tracepoint()) {}

UsageMeter::~UsageMeter() {
  if (tracepoint_ >= 0) ::close(tracepoint_);
}

Usage UsageMeter::now() const {
  Usage usage;
  // The meter's own calls between two readings: one `read`, one `getrusage`.
  constexpr std::uint64_t own_calls = 2;
  static thread_local std::uint64_t readings = 0;
  auto const library = statistics();
  usage.bytes_copied = library.bytes_copied;
  usage.system_calls = library.futex_waits + library.futex_wakes + library.yields;
  if (tracepoint_ >= 0) {
    std::uint64_t count = 0;
    require(::read(tracepoint_, &count, sizeof count) == sizeof count, "cannot read the counter of system calls");
    usage.system_calls = count - readings * own_calls;
  }
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  usage.minor_faults = static_cast<std::uint64_t>(used.ru_minflt);
  usage.switches = static_cast<std::uint64_t>(used.ru_nvcsw + used.ru_nivcsw);
  ++readings;
  return usage;
}

PeakMemory::PeakMemory() {
  restart();
  before_ = status_bytes("VmHWM:");
  files_before_ = status_bytes("RssFile:");
}

double PeakMemory::growth() const { return status_bytes("VmHWM:") - before_; }

void PeakMemory::restart() const {
  // Sets the kernel's peak to what the process uses now.
  std::ofstream("/proc/self/clear_refs") << "5";
}

double PeakMemory::growth_of_data() const {
  auto const files = status_bytes("RssFile:") - files_before_;
  auto const others = status_bytes("RssShmem:") - status_bytes("Pss_Shmem:", "/proc/self/smaps_rollup");
  return growth() - files - others;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    bool const has_value = i + 1 < argc;
    if (word == "--quick") {
      arguments.quick = true;
    } else if (word == "--out" && has_value) {
      arguments.out = argv[++i];
    } else if (word == "--only" && has_value) {
      arguments.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: %s --out FILE [--quick] [--only VARIANT]\n", argv[0]);
      std::exit(2);
    }
  }
  require(!arguments.out.empty(), "--out FILE is required");
  return arguments;
}

std::vector<std::size_t> sizes_in(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  auto const* const end = argv + argc;
  auto const* at = std::find_if(argv, argv + argc, [](char const* word) { return std::strcmp(word, "--") == 0; });
  if (at == end) return sizes;
  for (++at; at != end; ++at) sizes.push_back(static_cast<std::size_t>(std::strtoull(*at, nullptr, 10)));
  return sizes;
}

double microseconds_now() noexcept {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void measure(Row& row, UsageMeter const& meter, std::size_t samples, std::size_t batch, std::uint64_t first,
             std::function<void(std::uint64_t)> const& call, std::function<void()> const& between) {
  std::vector<double> times(samples);
  auto number = first;
  auto const before = meter.now();
  for (auto& time : times) {
    auto const start = microseconds_now();
    for (std::size_t i = 0; i < batch; ++i) call(number++);
    time = (microseconds_now() - start) / static_cast<double>(batch);
    if (between) between();
  }
  auto const after = meter.now();
  fill_costs(row, meter, before, after, samples * batch);
  fill_times(row, std::move(times));
}

void measure_once(Row& row, UsageMeter const& meter, std::function<void()> const& call) {
  auto const before = meter.now();
  auto const start = microseconds_now();
  call();
  auto const time = microseconds_now() - start;
  fill_costs(row, meter, before, meter.now(), 1);
  fill_times(row, {time});
}

void append(std::string const& file, std::vector<Row> const& rows) {
  std::string text;
  for (auto const& row : rows) text += to_json(row).dump() + "\n";
  int const fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  require(fd >= 0, "cannot open ", file, ": ", std::strerror(errno));
  bool const written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  require(::close(fd) == 0 && written, "cannot write ", file);
}

void fail(std::string const& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

}  // namespace crossrank::bench
