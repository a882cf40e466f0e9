#pragma once
#include <memory>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

#include "tools/cli/progress_line.hpp"

namespace crossrank::tools {

/// Writes the warnings of the library to standard error, each once, for as long as it lives. One at a time.
class WarningLog {
 public:
  /// `what` stands before each, as before the progress, whose bar gives way.
  WarningLog(std::string what, ProgressStyle style);
  ~WarningLog();
  WarningLog(WarningLog const&) = delete;
  WarningLog& operator=(WarningLog const&) = delete;

  /// Those of all ranks, sorted, each once. Collective.
  [[nodiscard]] std::vector<std::string> gather(Collective const& world) const;

 private:
  struct Heard;
  std::shared_ptr<Heard> heard_;
};

}  // namespace crossrank::tools
