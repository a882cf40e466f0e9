#pragma once
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::test {

/// Remembers what crossrank had in /dev/shm and says later what was added.
///
/// Other tests run at the same time and may pass through /dev/shm: a name counts as left behind only when it is still
/// there after 24 times the grace time.
class LeakCheck {
 public:
  LeakCheck();
  /// Lines that name what was left: entries of /dev/shm, and processes that carry `job_id` in their environment.
  [[nodiscard]] std::vector<std::string> findings(std::string_view job_id,
                                                  std::chrono::milliseconds grace = std::chrono::seconds(5)) const;

 private:
  std::set<std::string> before_;
};

}  // namespace crossrank::test
