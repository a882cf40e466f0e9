#pragma once
#include <memory>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

#include "tools/cli/progress_line.hpp"

namespace crossrank::tools {

/// Writes every distinct warning of the library to standard error once. Only one log may exist at a time.
class WarningLog {
 public:
  /// The name of `command` is printed before each warning. The progress bar is erased first.
  WarningLog(std::string const& command, ProgressStyle style);
  ~WarningLog();
  WarningLog(WarningLog const&) = delete;
  WarningLog& operator=(WarningLog const&) = delete;

  /// Returns the distinct warnings of all ranks, sorted. Collective.
  [[nodiscard]] std::vector<std::string> gather(Collective const& world) const;

 private:
  struct Heard;
  std::shared_ptr<Heard> heard_;
};

}  // namespace crossrank::tools
