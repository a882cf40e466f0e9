#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/platform/system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::test {

/// Replaces /proc and the other folders of the kernel with a temporary directory.
class FakeProcFs : public platform::System {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;

  FakeProcFs() = default;
  /// Makes the cgroups of the process, its mounts, and files with their texts.
  FakeProcFs(std::string const& groups, std::string const& mount_lines, Files const& files) {
    own_groups(groups);
    mounts(mount_lines);
    for (auto const& [path, text] : files) put(path, text);
  }

  void put(std::string const& path, std::string const& text) {
    auto const real = folder_.path() / path.substr(1);
    std::filesystem::create_directories(real.parent_path());
    std::ofstream(real) << text << '\n';
  }
  void own_groups(std::string const& text) { put("/proc/self/cgroup", text); }
  void mounts(std::string const& text) { put("/proc/self/mountinfo", text); }

  int openat(int directory, char const* path, int flags, mode_t mode) override {
    return platform::System::openat(directory, (folder_.path() / (path + 1)).c_str(), flags, mode);
  }
  /// Reads at most 7 bytes at a time. The kernel's files may return short reads too.
  ssize_t read(int fd, void* to, std::size_t bytes) override {
    return platform::System::read(fd, to, std::min<std::size_t>(bytes, 7));
  }

 private:
  TemporaryDirectory folder_{};
};

}  // namespace crossrank::test
