#include <crossrank/workspace/nfs_workspace.hpp>

#include <filesystem>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/workspace/nfs_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_same;
using test::sample_state;
using ::testing::HasSubstr;

using NFSWorkspaceTest = test::NFSDirectory;

TEST_F(NFSWorkspaceTest, passes_a_state_to_another_rank) {
  auto writer = open(3);
  auto const reader = open(0);
  write(writer, 42);
  auto const state = reader.read_configs_and_weights_from_rank(3);
  ASSERT_TRUE(state.has_value());
  expect_same(*state, sample_state(42));
}

TEST_F(NFSWorkspaceTest, reads_the_own_state) {
  auto workspace = open(0);
  write(workspace, 1);
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(1));
}

TEST_F(NFSWorkspaceTest, distinguishes_a_null_config_from_no_state) {
  auto workspace = open(0);
  EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(0).has_value());
  workspace.write_configs_and_weights(nullptr, {});
  auto const state = workspace.read_configs_and_weights_from_rank(0);
  ASSERT_TRUE(state.has_value());
  EXPECT_TRUE(state->config.is_null());
  EXPECT_TRUE(state->weights.empty());
}

TEST_F(NFSWorkspaceTest, gives_only_the_owner_access_to_its_files) {
  auto workspace = open(0);
  write(workspace, 0);
  struct stat status {};
  ASSERT_EQ(::stat(only_file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(NFSWorkspaceTest, creates_its_directory) {
  NFSWorkspace const workspace(root() / "a" / "b", {.rank = 0});
  EXPECT_TRUE(fs::is_directory(root() / "a" / "b"));
  EXPECT_EQ(workspace.path(), root() / "a" / "b");
  EXPECT_EQ(workspace.rank(), 0);
}

TEST_F(NFSWorkspaceTest, refuses_an_empty_path_and_a_negative_rank) {
  EXPECT_THROW(NFSWorkspace("", {.rank = 0}), UsageError);
  EXPECT_THROW(NFSWorkspace(root(), {.rank = -1}), UsageError);
  EXPECT_THROW((void)open(0).read_configs_and_weights_from_rank(-1), UsageError);
}

TEST_F(NFSWorkspaceTest, refuses_calls_when_default_constructed) {
  NFSWorkspace none;
  EXPECT_FALSE(none.is_initialized());
  EXPECT_THROW((void)none.path(), UsageError);
  EXPECT_THROW(none.write_configs_and_weights({}, {}), UsageError);
  EXPECT_THROW((void)none.read_configs_and_weights_from_rank(0), UsageError);
  EXPECT_THROW(none.clean(), UsageError);
}

TEST_F(NFSWorkspaceTest, opened_for_reading_changes_nothing) {
  {
    auto writer = open(0);
    write(writer, 9);
  }
  (void)make_foreign(77);
  auto const before = names();
  auto tool = NFSWorkspace::open(root());
  expect_same(tool.read_configs_and_weights_from_rank(0).value(), sample_state(9));
  EXPECT_THROW(tool.write_configs_and_weights({}, {}), UsageError);
  EXPECT_THROW(tool.clean(), UsageError);
  EXPECT_THROW((void)tool.rank(), UsageError);
  EXPECT_EQ(names(), before);
  EXPECT_THROW((void)NFSWorkspace::open(root() / "none"), IoError);
}

/// In a loop over layers, the previous state belongs to another layer.
TEST_F(NFSWorkspaceTest, names_a_damaged_newest_file_and_reads_the_older_one_when_asked) {
  auto workspace = open(0);
  write(workspace, 1);
  write(workspace, 2);
  auto const newest = root() / names().back();
  fs::resize_file(newest, fs::file_size(newest) - 1);
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); });
  EXPECT_EQ(error.resource, newest.string());
  EXPECT_THAT(error.hint, HasSubstr("take_older"));
  expect_same(workspace.read_configs_and_weights_from_rank(0, {.damaged = Damaged::take_older}).value(),
              sample_state(1));
}

TEST_F(NFSWorkspaceTest, refuses_a_rank_that_the_job_does_not_have) {
  NFSWorkspace const workspace(root(), {.rank = 1, .world_size = 4});
  EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(3).has_value());
  EXPECT_THAT(error_of<UsageError>([&] { (void)workspace.read_configs_and_weights_from_rank(4); }).expected,
              HasSubstr("below 4"));
  EXPECT_THROW(NFSWorkspace(root(), {.rank = 4, .world_size = 4}), UsageError);
  EXPECT_FALSE(NFSWorkspace::open(root()).read_configs_and_weights_from_rank(400).has_value())
      << "another job's directory may have any rank";
}

TEST_F(NFSWorkspaceTest, refuses_a_file_with_the_name_of_another_writer) {
  auto workspace = open(0);
  write(workspace, 1);
  auto other = *workspace::parse_state_file_name(only_file().filename().string());
  auto const own = other.name();
  other.writer ^= 1U;
  fs::rename(root() / own, root() / other.name());
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); });
  EXPECT_EQ(error.resource, (root() / other.name()).string());
  EXPECT_THAT(error.got, HasSubstr(own.substr(own.find("state.") + 6, 16)));
}

TEST_F(NFSWorkspaceTest, refuses_a_plain_safetensors_file) {
  auto workspace = open(0);
  std::string const header = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  put(workspace::StateFileName{.rank = 0, .writer = 7, .counter = 0}.name(), file + header + "x");
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); });
  EXPECT_EQ(error.section, "header");
}

TEST_F(NFSWorkspaceTest, refuses_a_file_with_the_name_of_another_rank) {
  auto workspace = open(0);
  write(workspace, 1);
  auto const file = *workspace::parse_state_file_name(only_file().filename().string());
  auto renamed = file;
  renamed.rank = 5;
  fs::rename(root() / file.name(), root() / renamed.name());
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(5); });
  EXPECT_THAT(error.expected, HasSubstr("rank 5"));
  EXPECT_THAT(error.got, HasSubstr("rank 0"));
}

TEST_F(NFSWorkspaceTest, never_ignores_a_torch_archive) {
  auto workspace = open(0);
  put("rank_1_state.pth");
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(1); });
  EXPECT_EQ(error.resource, (root() / "rank_1_state.pth").string());
  write(workspace, 1);
  put("rank_0_state.pth");
  EXPECT_THAT(error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); }).got,
              HasSubstr("rank_0_state.pth"));
}

TEST_F(NFSWorkspaceTest, refuses_links_and_files_of_others) {
  auto workspace = open(0);
  write(workspace, 1);
  auto const file = only_file();
  auto const read = [&] { (void)workspace.read_configs_and_weights_from_rank(0); };
  ::chmod(file.c_str(), 0666);
  EXPECT_THAT(error_of<IoError>(read).got, HasSubstr("0666"));
  ::chmod(file.c_str(), 0600);
  {
    test::FaultySystem os;
    os.on_fstat = [](struct stat& status) {
      if (S_ISREG(status.st_mode)) status.st_uid = ::geteuid() + 12;
    };
    platform::ScopedSystem const scope(os);
    EXPECT_EQ(error_of<IoError>(read).resource, file.string());
  }
  fs::rename(file, root() / "elsewhere");
  fs::create_symlink(root() / "elsewhere", file);
  EXPECT_THAT(error_of<IoError>(read).got, HasSubstr("symbolic link"));
}

TEST_F(NFSWorkspaceTest, reports_a_directory_that_has_vanished) {
  auto workspace = NFSWorkspace(root() / "gone", {.rank = 0});
  fs::remove_all(root() / "gone");
  EXPECT_EQ(error_of<IoError>([&] { write(workspace, 1); }).system_errno, ENOENT);
  EXPECT_EQ(error_of<IoError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); }).system_errno, ENOENT);
}

TEST_F(NFSWorkspaceTest, reports_a_read_only_or_full_directory) {
  auto workspace = open(0);
  test::FaultySystem os;
  platform::ScopedSystem const scope(os);
  os.on_name = [&os](test::Call call, std::string const& name) {
    if (call == test::Call::openat && name.ends_with(".tmp")) os.fail(call, os.uses(call) + 1, EROFS);
  };
  EXPECT_EQ(error_of<IoError>([&] { write(workspace, 1); }).system_errno, EROFS);
  os.on_name = {};
  os.fail(test::Call::fallocate, 1, ENOSPC);
  auto const full = error_of<IoError>([&] { write(workspace, 1); });
  EXPECT_EQ(full.system_errno, ENOSPC);
  EXPECT_FALSE(full.hint.empty());
  EXPECT_TRUE(names().empty());
}

TEST_F(NFSWorkspaceTest, keeps_a_relative_path_when_the_working_directory_changes) {
  auto const before = fs::current_path();
  fs::current_path(root());
  NFSWorkspace workspace("here", {.rank = 0});
  fs::current_path(before);
  write(workspace, 1);
  EXPECT_TRUE(fs::is_directory(root() / "here"));
  EXPECT_EQ(workspace.path(), root() / "here");
}

TEST_F(NFSWorkspaceTest, stores_many_tensors_and_large_ones) {
  StateDict weights;
  for (int i = 0; i < 3000; ++i)
    weights.insert_or_assign("scale." + std::to_string(i), Tensor::scalar(static_cast<float>(i)));
  auto large = Tensor::zeros({3, 700'001}, Dtype::bf16);
  auto const bytes = large.mutable_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2'654'435'761U) >> 13U);
  weights.insert_or_assign("large", large);
  weights.insert_or_assign("odd", large.narrow(0, 1, 1));
  auto workspace = open(0);
  workspace.write_configs_and_weights({{"n", 3000}}, weights);
  RankState expected;
  expected.config = {{"n", 3000}};
  expected.weights = weights;
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), expected);
}

}  // namespace
}  // namespace crossrank
