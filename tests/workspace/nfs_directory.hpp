#pragma once
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/workspace/nfs_workspace.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::test {

namespace fs = std::filesystem;

/// A directory with workspaces in it.
class NFSDirectory : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path const& root() const { return root_.path(); }
  [[nodiscard]] NFSWorkspace open(int rank) const { return NFSWorkspace(root(), {.rank = rank}); }
  static void write(NFSWorkspace& workspace, int seed) {
    auto const state = sample_state(seed);
    workspace.write_configs_and_weights(state.config, state.weights);
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (auto const& entry : fs::directory_iterator(root())) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  [[nodiscard]] fs::path only_file() const {
    auto const all = names();
    EXPECT_EQ(all.size(), 1U);
    return root() / all.at(0);
  }
  /// Replaces the only file by one of another process.
  fs::path make_foreign(std::uint64_t writer, int seed = 9) const {
    auto file = *workspace::parse_state_file_name(only_file().filename().string());
    fs::remove(root() / file.name());
    file.writer = writer;
    leave_state(root(), file, seed);
    return root() / file.name();
  }
  void put(std::string const& name, std::string const& text = "x") const {
    std::ofstream(root() / name) << text;
    ::chmod((root() / name).c_str(), 0600);
  }

  TemporaryDirectory root_{};
};

}  // namespace crossrank::test
