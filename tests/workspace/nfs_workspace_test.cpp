#include <crossrank/workspace/nfs_workspace.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/log.hpp>

#include "lib/platform/files/fd.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/state_file_names.hpp"
#include "workspace/nfs/file_state_store.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_same;
using test::sample_state;
using ::testing::HasSubstr;

class NFSWorkspaceTest : public ::testing::Test {
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
    test::leave_state(root(), file, seed);
    return root() / file.name();
  }
  void put(std::string const& name, std::string const& text = "x") const {
    std::ofstream(root() / name) << text;
    ::chmod((root() / name).c_str(), 0600);
  }

  test::TemporaryDirectory root_{};
};

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

TEST_F(NFSWorkspaceTest, reads_the_newest_and_keeps_two) {
  auto workspace = open(0);
  for (int seed = 0; seed < 5; ++seed) write(workspace, seed);
  EXPECT_EQ(names().size(), 2U);
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(4));
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

TEST_F(NFSWorkspaceTest, removes_files_of_a_dead_process_for_its_own_rank_only) {
  {
    auto writer = open(0);
    write(writer, 9);
  }
  auto const stale = make_foreign(77);
  auto const temporary = '.' + stale.filename().string() + ".0123456789abcdef.crossrank.tmp";
  put(temporary, "");
  auto const of_rank_1 = workspace::StateFileName{.rank = 1, .writer = 77, .counter = 5}.name();
  test::leave_state(root(), {.rank = 1, .writer = 77, .counter = 5});
  put("notes.txt");
  auto const workspace = open(0);
  EXPECT_THAT(names(), ::testing::ElementsAre("notes.txt", of_rank_1));
  EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(0).has_value());
}

/// A worker process of a killed rank, such as a data loader, may live on for a while.
TEST_F(NFSWorkspaceTest, removes_files_of_a_dead_process_whose_child_is_alive) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  platform::Fd const from_child(ends[0]);
  platform::Fd to_parent(ends[1]);
  pid_t const writer = ::fork();
  if (writer == 0) {
    auto workspace = open(0);
    write(workspace, 7);
    pid_t const child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    ::_exit(::write(to_parent.get(), &child, sizeof child) == sizeof child ? 0 : 1);
  }
  pid_t child = -1;
  ASSERT_EQ(::read(from_child.get(), &child, sizeof child), static_cast<ssize_t>(sizeof child));
  int status = 0;
  ASSERT_EQ(::waitpid(writer, &status, 0), writer);
  ASSERT_EQ(status, 0);
  auto workspace = open(0);
  EXPECT_EQ(names(), std::vector<std::string>());
  write(workspace, 8);
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(8));
  ::kill(child, SIGKILL);
}

TEST_F(NFSWorkspaceTest, keeps_existing_files_when_asked) {
  {
    auto writer = open(0);
    write(writer, 9);
  }
  (void)make_foreign(77);
  auto workspace = NFSWorkspace(root(), {.rank = 0, .existing = Existing::keep});
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(9));
  write(workspace, 10);
  auto const error = error_of<FormatError>([&] { (void)workspace.read_configs_and_weights_from_rank(0); });
  EXPECT_THAT(error.got, HasSubstr("000000000000004d-"));
}

TEST_F(NFSWorkspaceTest, never_removes_files_of_this_process) {
  auto first = open(0);
  write(first, 1);
  auto const second = open(0);
  expect_same(second.read_configs_and_weights_from_rank(0).value(), sample_state(1));
}

TEST_F(NFSWorkspaceTest, keeps_two_files_after_writes_of_many_workspaces) {
  for (int i = 0; i < 10; ++i) {
    auto workspace = open(0);
    for (int j = 0; j < 1 + i % 3; ++j) write(workspace, 10 * i + j);
    EXPECT_LE(names().size(), 2U) << i;
    expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(10 * i + i % 3));
  }
  open(0).clean();
  EXPECT_EQ(names().size(), 0U);
}

TEST_F(NFSWorkspaceTest, keeps_files_that_another_workspace_of_this_process_holds) {
  auto first = open(0);
  write(first, 1);
  auto second = open(0);
  for (int i = 2; i < 6; ++i) write(second, i);
  second.clean();
  expect_same(second.read_configs_and_weights_from_rank(0).value(), sample_state(1));
}

TEST_F(NFSWorkspaceTest, clean_removes_all_files_of_the_rank) {
  auto workspace = open(0);
  auto other = open(1);
  write(other, 2);
  write(workspace, 1);
  write(workspace, 2);
  workspace.clean();
  EXPECT_EQ(names().size(), 1U);
  EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(0).has_value());
  EXPECT_TRUE(workspace.read_configs_and_weights_from_rank(1).has_value());
  write(workspace, 3);
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(3));
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

TEST_F(NFSWorkspaceTest, keeps_a_foreign_file_with_the_name_of_a_state) {
  auto const name = workspace::StateFileName{.rank = 0, .writer = 77, .counter = 5}.name();
  put(name, "somebody's own data");
  (void)open(0);
  EXPECT_THAT(names(), ::testing::ElementsAre(name));
}

TEST_F(NFSWorkspaceTest, keeps_files_of_unknown_writers_unless_forced) {
  test::leave_state(root(), {.rank = 0, .writer = 77, .counter = 5});
  test::FaultySystem os;
  os.fail_always(test::Call::flock, ENOLCK);
  platform::ScopedSystem const scope(os);
  (void)open(0);
  EXPECT_EQ(names().size(), 1U) << "crossrank clean keeps it as well";
  (void)NFSWorkspace(root(), {.rank = 0, .existing = Existing::force});
  EXPECT_TRUE(names().empty());
}

TEST_F(NFSWorkspaceTest, warns_once_when_it_deletes_a_state_of_a_clean_exit) {
  auto const finished = [&](std::uint64_t writer) {
    workspace::StateFileName const file{.rank = 0, .writer = writer, .counter = 1};
    test::leave_state(root(), file);
    ASSERT_EQ(::chmod((root() / file.name()).c_str(), 0400), 0);
  };
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) {
    if (event.level == LogLevel::warning) warnings.emplace_back(event.message);
  });
  finished(77);
  finished(78);
  (void)open(0);
  set_log_sink({});
  EXPECT_TRUE(names().empty());
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("(`open`)")));
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

TEST_F(NFSWorkspaceTest, keeps_published_files_until_their_range_is_closed) {
  auto workspace = open(0);
  auto const& store = *workspace.store();
  auto& writer = *workspace.store();
  auto const state = sample_state(1);
  auto const outer = writer.write_for_range(state.config, state.weights);
  auto const inner = writer.write_for_range(state.config, state.weights);
  for (int seed = 0; seed < 3; ++seed) write(workspace, seed);
  expect_same(store.read_published(outer), state);
  expect_same(store.read_published(inner), state);
  EXPECT_EQ(names().size(), 4U);
  writer.retire(inner);
  EXPECT_TRUE(fs::exists(root() / outer.file.name())) << "the outer range is open still";
  writer.retire(outer);
  EXPECT_EQ(names().size(), 4U) << "nothing is older than the first";
  write(workspace, 4);
  EXPECT_EQ(names().size(), 2U);
}

TEST_F(NFSWorkspaceTest, removes_files_older_than_the_range) {
  auto workspace = open(0);
  write(workspace, 1);
  auto const state = sample_state(2);
  auto const published = workspace.store()->write_for_range(state.config, state.weights);
  EXPECT_EQ(names().size(), 2U);
  workspace.store()->retire(published);
  EXPECT_EQ(only_file(), root() / published.file.name());
  auto const failed = workspace.store()->write_for_range(state.config, state.weights);
  workspace.store()->abandon(failed);
  EXPECT_EQ(names().size(), 2U);
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
