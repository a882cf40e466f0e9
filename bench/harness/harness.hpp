#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace crossrank::bench {

/// The costs of a process so far, as counted by the kernel and the library.
struct Usage {
  std::uint64_t minor_faults = 0;  ///< of the calling thread
  std::uint64_t switches = 0;      ///< voluntary and involuntary, of the calling thread
  std::uint64_t system_calls = 0;  ///< of the calling thread
  std::uint64_t bytes_copied = 0;  ///< by the library
};

/// Counts the costs of the calling thread. Counts system calls with the kernel's tracepoint if this user may open it,
/// otherwise with the library's own counters (sleeps, wakes, yields).
class UsageMeter {
 public:
  UsageMeter();
  ~UsageMeter();
  UsageMeter(UsageMeter const&) = delete;
  UsageMeter& operator=(UsageMeter const&) = delete;

  [[nodiscard]] Usage now() const;
  [[nodiscard]] char const* system_call_source() const noexcept { return tracepoint_ >= 0 ? "tracepoint" : "library"; }

 private:
  int tracepoint_ = -1;
};

/// Measures by how much the memory of this process grows, at its peak.
class PeakMemory {
 public:
  PeakMemory();
  /// Returns the growth since the constructor, in bytes.
  [[nodiscard]] double growth() const;
  /// Forgets the peak so far, but not what the process used before.
  void restart() const;
  /// Returns the growth without pages of files, which are code and libraries that the process has used meanwhile. The
  /// rest is the heap, the stacks, and shared memory. A page of shared memory counts in equal parts for the processes
  /// that use it.
  [[nodiscard]] double growth_of_data() const;

 private:
  double before_;
  double files_before_;
};

/// One line of a result file: a workload, and the measurement of one rank in one launch.
struct Row {
  std::string path{};  ///< "gather", "configs", "barrier"
  std::string who = "crossrank";
  std::string variant{};  ///< "warm", "arena-backed", "cold"
  int rank = 0;
  int ranks = 0;
  std::size_t bytes = 0;  ///< of one rank's contribution; for configs the number of tensors
  bool reads = false;     ///< whether the consumer reads every byte
  std::size_t calls = 0;
  double min_us = 0.0;
  double median_us = 0.0;
  double p99_us = 0.0;
  double faults = 0.0;  ///< per call, like the next four
  double switches = 0.0;
  double system_calls = 0.0;
  double copied = 0.0;
  double payload = 0.0;  ///< bytes of this rank that the library may copy once per call
  std::string system_call_source{};
  double peak_bytes = 0.0;    ///< memory of the largest process, for a whole command
  double processor_us = 0.0;  ///< of all processes of the command
  // Of operations on GPU tensors.
  std::string backend{};                   ///< "nccl" or "staged": how collectives go
  std::map<std::string, double> counts{};  ///< per call: see `GpuLog::counts`
  std::map<std::string, double> limits{};  ///< how large these may be
};

/// The command line of every measuring program.
struct Arguments {
  std::string out{};
  bool quick = false;
  std::string only{};  ///< `--only WORD`: run one variant, for profiling
};

[[nodiscard]] Arguments parse(int argc, char** argv);
/// Returns the numbers after "--".
[[nodiscard]] std::vector<std::size_t> sizes_in(int argc, char** argv);
[[nodiscard]] double microseconds_now() noexcept;

/// Runs `call(number)` samples x batch times and stores times and costs per call. Numbers start at `first`.
/// `between` runs after each batch, outside the measured time.
void measure(Row& row, UsageMeter const& meter, std::size_t samples, std::size_t batch, std::uint64_t first,
             std::function<void(std::uint64_t)> const& call, std::function<void()> const& between = {});
/// Measures a single call, for example the first one of its kind.
void measure_once(Row& row, UsageMeter const& meter, std::function<void()> const& call);

/// Appends rows to a file in one write, one JSON object per line.
void append(std::string const& file, std::vector<Row> const& rows);

/// Prints `what` and ends the process.
[[noreturn]] void fail(std::string const& what);

/// Ends the process when a result is wrong, because the time of a wrong result is meaningless. Joins `what` only then.
template <class... Text>
void require(bool right, Text const&... what) {
  if (!right) fail((std::string() + ... + what));
}

}  // namespace crossrank::bench
