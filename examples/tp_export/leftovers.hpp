#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tp_export {

/// Remembers the content of shared memory and of folders, and later lists what has been added.
class Leftovers {
 public:
  /// Remembers the content of shared memory.
  Leftovers();
  /// Also watches everything below `folder` from now on.
  void watch(std::filesystem::path const& folder);
  /// Returns the new paths of this user that are not in `expected`.
  [[nodiscard]] std::vector<std::string> find(std::set<std::filesystem::path> const& expected) const;

 private:
  [[nodiscard]] std::vector<std::string> find_now(std::set<std::filesystem::path> const& expected) const;

  std::set<std::filesystem::path> folders_{};
  std::set<std::filesystem::path> before_{};
};

}  // namespace tp_export
