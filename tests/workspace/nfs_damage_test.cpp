// A damaged state file gives its reader a FormatError and nothing else, wherever the damage is.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;

class NFSWorkspaceDamage : public ::testing::Test {
 protected:
  NFSWorkspaceDamage() {
    auto const state = test::sample_state(5);
    workspace_.write_configs_and_weights(state.config, state.weights);
    file_ = fs::directory_iterator(root_.path())->path();
    std::ifstream in(file_, std::ios::binary);
    whole_.assign(std::istreambuf_iterator<char>(in), {});
  }
  void put(std::string const& bytes) const { std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes; }
  [[nodiscard]] bool refused() const {
    try {
      (void)workspace_.read_configs_and_weights_from_rank(0);
    } catch (FormatError const& error) {
      return error.info().resource == file_.string() && !error.section().empty();
    }
    return false;
  }

  test::TemporaryDirectory root_{};
  NFSWorkspace workspace_{root_.path(), {.rank = 0}};
  fs::path file_{};
  std::string whole_{};
};

TEST_F(NFSWorkspaceDamage, is_detected_at_every_truncation) {
  for (std::size_t length = 0; length < whole_.size(); ++length) {
    put(whole_.substr(0, length));
    ASSERT_TRUE(refused()) << "truncated to " << length << " of " << whole_.size() << " bytes";
  }
}

TEST_F(NFSWorkspaceDamage, is_detected_in_every_bit) {
  for (std::size_t at = 0; at < whole_.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      auto bytes = whole_;
      bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << bit));
      put(bytes);
      ASSERT_TRUE(refused()) << "byte " << at << " bit " << bit;
    }
  }
}

TEST_F(NFSWorkspaceDamage, is_detected_after_the_end) {
  put(whole_ + '\0');
  EXPECT_TRUE(refused());
}

TEST_F(NFSWorkspaceDamage, is_detected_when_two_files_are_swapped) {
  auto const state = test::sample_state(6);
  workspace_.write_configs_and_weights(state.config, state.weights);
  for (auto const& entry : fs::directory_iterator(root_.path())) {
    if (entry.path() != file_) fs::rename(entry.path(), file_);  // gives newer bytes an old name
  }
  EXPECT_TRUE(refused());
}

}  // namespace
}  // namespace crossrank
