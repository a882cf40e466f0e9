#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace crossrank::bench {

/// What a process has used up so far, as the kernel and the library count it.
struct Usage {
  std::uint64_t minor_faults = 0;  ///< of the calling thread
  std::uint64_t switches = 0;      ///< voluntary and involuntary, of the calling thread
  std::uint64_t system_calls = 0;  ///< of the calling thread
  std::uint64_t bytes_copied = 0;  ///< by the library
};

/// Counts the calling thread's costs. System calls are counted by the kernel's tracepoint where this user may open it,
/// else by the library's own counters (sleeps, wakes, yields).
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

/// One line of a result file: a workload, and what one rank measured in one launch.
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
  double faults = 0.0;  ///< per call, as the four below
  double switches = 0.0;
  double system_calls = 0.0;
  double copied = 0.0;
  double payload = 0.0;  ///< bytes of this rank that the library may copy once in a call
  std::string system_call_source{};
  double peak_bytes = 0.0;    ///< memory of the largest process, where a whole command is measured
  double processor_us = 0.0;  ///< of all its processes together
};

/// `--out FILE` and `--quick`, as every measuring program takes them.
struct Arguments {
  std::string out{};
  bool quick = false;
  std::string only{};  ///< `--only WORD`: one variant, for profiles
};

[[nodiscard]] Arguments parse(int argc, char** argv);
/// The numbers behind "--".
[[nodiscard]] std::vector<std::size_t> sizes_in(int argc, char** argv);
[[nodiscard]] double microseconds_now() noexcept;

/// Runs `call(number)` samples x batch times and fills in times and costs per call; numbers go on from `first`.
void measure(Row& row, UsageMeter const& meter, std::size_t samples, std::size_t batch, std::uint64_t first,
             std::function<void(std::uint64_t)> const& call);
/// Times a single call, as the first one of a kind.
void measure_once(Row& row, UsageMeter const& meter, std::function<void()> const& call);

/// Appends rows to a file, one JSON object on each line, in one write.
void append(std::string const& file, std::vector<Row> const& rows);

/// Ends the process, saying what is wrong.
[[noreturn]] void fail(std::string const& what);

/// Ends the process when a result is wrong: a figure of wrong results is worth nothing. `what` is joined only then.
template <class... Text>
void require(bool right, Text const&... what) {
  if (!right) fail((std::string() + ... + what));
}

}  // namespace crossrank::bench
