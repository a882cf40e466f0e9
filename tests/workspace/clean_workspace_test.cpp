#include "workspace/nfs/clean_workspace.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <sys/file.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>

#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/fd.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/state_file_names.hpp"

namespace crossrank::workspace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CleanWorkspace : public ::testing::Test {
 protected:
  std::string put(std::string const& name) const {
    std::ofstream(root_.path() / name) << "12345";
    return name;
  }
  void put_state() const { test::leave_state(root_.path(), file_); }
  [[nodiscard]] bool there(std::string const& name) const {
    return fs::exists(fs::symlink_status(root_.path() / name));
  }
  [[nodiscard]] std::vector<CleanedFile> clean(CleanOptions options = {}) const {
    return clean_workspace(root_.path(), options);
  }

  test::TemporaryDirectory root_{};
  StateFileName const file_{.rank = 2, .writer = 9, .counter = 1};
  std::string const state_ = file_.name();
  std::string const temporary_ = ".model-00001.safetensors.0123456789abcdef.crossrank.tmp";
};

TEST_F(CleanWorkspace, removes_only_the_files_of_dead_jobs) {
  put_state();
  put(temporary_);
  put("rank_2_state.pth");
  put(".hidden");
  auto const bytes = fs::file_size(root_.path() / state_);
  auto const report = clean();
  ASSERT_EQ(report.size(), 2U);
  for (auto const& file : report) {
    EXPECT_TRUE(file.removed);
    EXPECT_EQ(file.is_state, file.name == state_);
    EXPECT_EQ(file.bytes, file.is_state ? bytes : 5U);
    EXPECT_FALSE(there(file.name));
  }
  EXPECT_TRUE(there("rank_2_state.pth"));
  EXPECT_TRUE(there(".hidden"));
}

TEST_F(CleanWorkspace, of_one_file_removes_only_temporaries_of_dead_writers_of_that_file) {
  put_state();
  auto const other = put(".plan.json.old.0123456789abcdef.crossrank.tmp");
  auto const dead = put(".plan.json.0123456789abcdef.crossrank.tmp");
  platform::Directory const directory = platform::Directory::open(root_.path(), "test");
  platform::AtomicFile const writing(directory, "plan.json", 0, "test");
  auto const report = clean({.temporaries_of = "plan.json"});
  EXPECT_EQ(report.size(), 2U);
  EXPECT_FALSE(there(dead));
  for (auto const& name : {state_, other, writing.temporary_name()}) EXPECT_TRUE(there(name)) << name;
}

TEST_F(CleanWorkspace, removes_nothing_in_a_dry_run) {
  put_state();
  EXPECT_TRUE(clean({.dry_run = true}).at(0).removed);
  EXPECT_TRUE(there(state_));
}

TEST_F(CleanWorkspace, keeps_the_files_of_live_writers) {
  NFSWorkspace workspace(root_.path(), {.rank = 0});
  workspace.write_configs_and_weights({}, {});
  auto const report = clean();
  ASSERT_EQ(report.size(), 1U);
  EXPECT_FALSE(report[0].removed);
  EXPECT_THAT(report[0].why, HasSubstr("still running"));
}

TEST_F(CleanWorkspace, keeps_states_of_a_clean_exit_unless_all_is_given) {
  std::string name;
  {
    NFSWorkspace workspace(root_.path(), {.rank = 0});
    workspace.write_configs_and_weights({}, {});
    name = fs::directory_iterator(root_.path())->path().filename().string();
  }
  auto const report = clean({.force = true});
  ASSERT_EQ(report.size(), 1U);
  EXPECT_FALSE(report[0].removed);
  EXPECT_THAT(report[0].why, HasSubstr("exited cleanly"));
  EXPECT_TRUE(there(name));
  EXPECT_TRUE(NFSWorkspace::open(root_.path()).read_configs_and_weights_from_rank(0).has_value());
  EXPECT_TRUE(clean({.all = true}).at(0).removed);
  EXPECT_FALSE(there(name));
}

TEST_F(CleanWorkspace, keeps_states_of_a_clean_exit_without_file_locks) {
  test::FaultySystem os;
  os.fail_always(test::Call::flock, ENOLCK);
  platform::ScopedSystem const scope(os);
  {
    NFSWorkspace workspace(root_.path(), {.rank = 0});
    workspace.write_configs_and_weights({}, {});
  }
  EXPECT_FALSE(clean({.force = true}).at(0).removed);
  EXPECT_TRUE(clean({.all = true}).at(0).removed);
}

TEST_F(CleanWorkspace, treats_states_left_by_stack_unwinding_as_those_of_a_killed_writer) {
  try {
    NFSWorkspace workspace(root_.path(), {.rank = 0});
    workspace.write_configs_and_weights({}, {});
    throw 1;
  } catch (int) {
    EXPECT_TRUE(clean().at(0).removed);
  }
}

/// Foreign files that only have the name of a state: no option removes them.
TEST_F(CleanWorkspace, never_removes_a_foreign_file_with_the_name_of_a_state) {
  put(state_);
  put(".notes.0123456789abcdef.tmp");
  auto const renamed = StateFileName{.rank = 2, .writer = 9, .counter = 2};
  test::leave_state(root_.path(), {.rank = 2, .writer = 9, .counter = 3});
  fs::rename(root_.path() / StateFileName{.rank = 2, .writer = 9, .counter = 3}.name(), root_.path() / renamed.name());
  auto const report = clean({.force = true, .all = true});
  ASSERT_EQ(report.size(), 2U);
  EXPECT_FALSE(report[0].removed);
  EXPECT_THAT(report[0].why, HasSubstr("not a state image"));
  EXPECT_FALSE(report[1].removed);
  EXPECT_THAT(report[1].why, HasSubstr("another name"));
  EXPECT_TRUE(there(state_));
  EXPECT_TRUE(there(renamed.name()));
  EXPECT_TRUE(there(".notes.0123456789abcdef.tmp"));
}

TEST_F(CleanWorkspace, removes_a_damaged_state_of_a_killed_writer) {
  put_state();
  fs::resize_file(root_.path() / state_, fs::file_size(root_.path() / state_) - 1);
  EXPECT_TRUE(clean().at(0).removed);
}

TEST_F(CleanWorkspace, keeps_files_of_unknown_writers_unless_forced) {
  put_state();
  test::FaultySystem os;
  os.fail_always(test::Call::flock, ENOLCK);
  platform::ScopedSystem const scope(os);
  EXPECT_FALSE(clean().at(0).removed);
  EXPECT_TRUE(there(state_));
  EXPECT_TRUE(clean({.force = true}).at(0).removed);
  EXPECT_FALSE(there(state_));
}

TEST_F(CleanWorkspace, keeps_a_symbolic_link) {
  put("precious");
  fs::create_symlink(root_.path() / "precious", root_.path() / state_);
  EXPECT_FALSE(clean({.force = true}).at(0).removed);
  EXPECT_TRUE(there("precious"));
  EXPECT_TRUE(there(state_));
}

TEST_F(CleanWorkspace, reports_why_a_file_could_not_be_removed) {
  put_state();
  test::FaultySystem os;
  os.fail_always(test::Call::unlinkat, EACCES);
  platform::ScopedSystem const scope(os);
  auto const report = clean();
  EXPECT_FALSE(report.at(0).removed);
  EXPECT_THAT(report.at(0).why, HasSubstr("EACCES"));
}

TEST_F(CleanWorkspace, names_a_missing_directory) {
  EXPECT_THROW((void)clean_workspace(root_.path() / "none"), IoError);
}

}  // namespace
}  // namespace crossrank::workspace
