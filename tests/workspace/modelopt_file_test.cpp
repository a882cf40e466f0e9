#include "workspace/nfs/modelopt_file.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path golden() { return fs::path(CROSSRANK_TEST_DATA) / "torch"; }

/// Torch cannot represent an undefined tensor.
RankState whole_state(int seed) {
  auto state = test::sample_state(seed);
  state.weights.erase("absent");
  return state;
}

class ModelOptFile : public testing::Test {
 protected:
  [[nodiscard]] fs::path file(int rank) const { return root_.path() / ("rank_" + std::to_string(rank) + "_state.pth"); }
  [[nodiscard]] NFSWorkspace torch_workspace(int rank) const {
    return NFSWorkspace(root_.path(), {.rank = rank, .format = StateFormat::torch});
  }
  void copy_golden(char const* name, int rank) const {
    fs::copy_file(golden() / name, file(rank));
    ::chmod(file(rank).c_str(), 0600);
  }
  [[nodiscard]] std::size_t files() const {
    return as_size(std::distance(fs::directory_iterator(root_.path()), fs::directory_iterator()));
  }
  test::TemporaryDirectory root_{};
};

TEST_F(ModelOptFile, reads_files_written_by_modelopt) {
  copy_golden("rank_3_state.pth", 3);
  auto const state = NFSWorkspace::open(root_.path()).read_configs_and_weights_from_rank(3);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->config.at("__name__"), "ModelConfig");
  EXPECT_EQ(state->config.at("rotary_dim").get<double>(), -INFINITY);
  EXPECT_EQ(state->weights.size(), 3U);
  EXPECT_EQ(to_string(state->weights.at("transformer.vocab_embedding.weight")), "F8_E4M3 [32, 8]");
  EXPECT_FALSE(NFSWorkspace::open(root_.path()).read_configs_and_weights_from_rank(2));
}

TEST_F(ModelOptFile, refuses_other_content) {
  copy_golden("mixed.pth", 0);
  copy_golden("hostile/os_system.pth", 1);
  auto const workspace = NFSWorkspace::open(root_.path());
  EXPECT_THROW((void)workspace.read_configs_and_weights_from_rank(0), FormatError);
  EXPECT_THROW((void)workspace.read_configs_and_weights_from_rank(1), FormatError);
}

TEST_F(ModelOptFile, reads_back_what_it_wrote) {
  auto const state = whole_state(4);
  auto workspace = torch_workspace(1);
  workspace.write_configs_and_weights(state.config, state.weights);
  workspace.write_configs_and_weights(state.config, state.weights);
  EXPECT_TRUE(fs::exists(file(1)));
  EXPECT_EQ(files(), 1U);
  auto const back = NFSWorkspace::open(root_.path()).read_configs_and_weights_from_rank(1);
  ASSERT_TRUE(back);
  test::expect_same(*back, state);
  workspace.clean();
  EXPECT_EQ(files(), 0U);
}

TEST_F(ModelOptFile, of_an_earlier_job_is_removed_when_the_rank_opens_the_directory) {
  auto const state = whole_state(4);
  torch_workspace(1).write_configs_and_weights(state.config, state.weights);
  torch_workspace(2).write_configs_and_weights(state.config, state.weights);
  EXPECT_TRUE(NFSWorkspace(root_.path(), {.rank = 1, .existing = Existing::keep, .format = StateFormat::torch})
                  .read_configs_and_weights_from_rank(1));
  auto const next = torch_workspace(1);
  EXPECT_FALSE(next.read_configs_and_weights_from_rank(1));
  EXPECT_TRUE(next.read_configs_and_weights_from_rank(2));
}

TEST_F(ModelOptFile, names_both_files_when_a_state_file_exists_too) {
  auto const state = whole_state(4);
  torch_workspace(1).write_configs_and_weights(state.config, state.weights);
  NFSWorkspace ours(root_.path(), {.rank = 1});
  ours.write_configs_and_weights(state.config, state.weights);
  try {
    (void)ours.read_configs_and_weights_from_rank(1);
    ADD_FAILURE() << "read";
  } catch (FormatError const& e) {
    EXPECT_THAT(e.info().got, testing::AllOf(HasSubstr("rank_1_state.pth"), HasSubstr(".safetensors")));
  }
}

TEST_F(ModelOptFile, keeps_the_old_file_when_any_call_of_a_write_fails) {
  auto const old_state = whole_state(4);
  auto const new_state = whole_state(5);
  auto workspace = torch_workspace(1);
  workspace.write_configs_and_weights(old_state.config, old_state.weights);
  for (auto const call : {test::Call::openat, test::Call::pwrite, test::Call::fsync, test::Call::close,
                          test::Call::renameat, test::Call::fallocate}) {
    test::FaultySystem os;
    os.fail(call, 1, ENOSPC);
    {
      platform::ScopedSystem const scope(os);
      EXPECT_THROW(workspace.write_configs_and_weights(new_state.config, new_state.weights), IoError);
    }
    EXPECT_EQ(files(), 1U);
    test::expect_same(*workspace.read_configs_and_weights_from_rank(1), old_state);
  }
  workspace.write_configs_and_weights(new_state.config, new_state.weights);
  test::expect_same(*workspace.read_configs_and_weights_from_rank(1), new_state);
}

TEST_F(ModelOptFile, is_the_old_or_the_new_file_when_the_writer_is_killed) {
  auto const old_state = whole_state(4);
  auto const new_state = whole_state(5);
  auto workspace = torch_workspace(1);
  for (auto const* point :
       {"platform.atomic_file.created", "platform.atomic_file.written", "platform.atomic_file.closed",
        "platform.atomic_file.unlinked", "platform.atomic_file.committed"}) {
    workspace.write_configs_and_weights(old_state.config, old_state.weights);
    pid_t const child = ::fork();
    if (child == 0) {
      platform::arm_crash_point(point, 1);
      workspace.write_configs_and_weights(new_state.config, new_state.weights);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point;
    auto const renamed =
        std::string_view(point).ends_with("unlinked") || std::string_view(point).ends_with("committed");
    test::expect_same(*workspace.read_configs_and_weights_from_rank(1), renamed ? new_state : old_state);
  }
}

TEST_F(ModelOptFile, cannot_be_used_by_a_range) {
  EXPECT_THROW((void)torch_workspace(0).store()->write_for_range({}, {}), UsageError);
}

}  // namespace
}  // namespace crossrank
