#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/crossrank.hpp>

namespace tp_export {

/// One line of the final table. Counters are sums over all ranks.
struct Row {
  std::string path{};
  std::uint64_t bytes = 0;   ///< payload
  double seconds = 0;        ///< until the last rank has finished
  std::uint64_t copied = 0;  ///< bytes moved in memory: by the library, by file reads and writes, by joining
  std::uint64_t faults = 0;  ///< minor page faults
};

/// The result of a measured step.
struct Step {
  std::uint64_t bytes = 0;   ///< payload
  std::uint64_t joined = 0;  ///< bytes that the step copied itself
};

/// Runs a step on all ranks at the same time and measures it. Collective; every rank gets the row.
[[nodiscard]] Row measure(xr::Collective const& world, std::string path, std::function<Step()> const& step);

/// Prints the progress of a step on rank 0, in quarters.
class Progress {
 public:
  Progress(xr::Collective const& world, std::string what, std::size_t total);
  void operator()(std::size_t done);

 private:
  std::string what_;
  std::size_t total_;
  std::size_t printed_quarter_ = 0;
  bool speaks_;
};

/// Formats a size, such as "1.5 MiB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

void print_table(std::vector<Row> const& rows);

}  // namespace tp_export
