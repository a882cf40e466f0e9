#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tp_export {

/// Remembers what stands in shared memory and in folders, and says later what has come since.
class Leftovers {
 public:
  /// Looks at shared memory only.
  Leftovers();
  /// From now on looks at all that is below `folder` as well.
  void watch(std::filesystem::path const& folder);
  /// What is new, this user's, and not in `expected`.
  [[nodiscard]] std::vector<std::string> find(std::set<std::filesystem::path> const& expected) const;

 private:
  [[nodiscard]] std::vector<std::string> find_now(std::set<std::filesystem::path> const& expected) const;

  std::set<std::filesystem::path> folders_{};
  std::set<std::filesystem::path> before_{};
};

}  // namespace tp_export
