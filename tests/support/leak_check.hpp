#pragma once
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::test {

/// Records crossrank's names in /dev/shm and reports later which ones were added.
///
/// Other tests run at the same time and may have names in /dev/shm. A name therefore counts as left behind only when it
/// is still there after 24 times the grace time.
class LeakCheck {
 public:
  LeakCheck();
  /// Returns one line per leftover: entries of /dev/shm, and processes with `job_id` in their environment.
  [[nodiscard]] std::vector<std::string> findings(std::string_view job_id,
                                                  std::chrono::milliseconds grace = std::chrono::seconds(5)) const;

 private:
  std::set<std::string> before_;
};

}  // namespace crossrank::test
