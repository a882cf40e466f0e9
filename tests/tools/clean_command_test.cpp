#include "tools/clean_command.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "lib/node/names.hpp"
#include "lib/platform/fd.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"
#include "workspace/nfs_files.hpp"

namespace {

namespace fs = std::filesystem;
using crossrank::test::run_command;
using crossrank::test::TemporaryDirectory;
using crossrank::workspace::StateFile;
using testing::HasSubstr;

fs::path state_file(fs::path const& folder, std::uint32_t counter) {
  auto path = folder / StateFile{.rank = 3, .writer = 0x1234, .counter = counter}.name();
  std::ofstream(path) << "left by a job that died";
  return path;
}

// Holds a file as the workspace of a running job does.
crossrank::platform::Fd hold(fs::path const& path) {
  crossrank::platform::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::flock(fd.get(), LOCK_SH | LOCK_NB), 0);
  return fd;
}

TEST(Clean, removes_what_dead_jobs_left_and_nothing_else) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const alive = state_file(folder.path(), 2);
  auto const lock = hold(alive);
  auto const foreign = folder.path() / "model.safetensors";
  std::ofstream(foreign) << "somebody's";
  auto const end = run_command({"clean", folder.path().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_FALSE(fs::exists(dead)) << end.out;
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_THAT(end.out, HasSubstr("removed " + dead.string() + ", 23 bytes"));
  EXPECT_THAT(end.out, HasSubstr("kept " + alive.string()));
}

TEST(Clean, only_says_what_it_would_do_when_asked) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const end = run_command({"clean", "--dry-run", folder.path().string()});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(fs::exists(dead));
  EXPECT_THAT(end.out, HasSubstr("would remove " + dead.string()));
}

TEST(Clean, names_a_directory_that_it_cannot_read_and_goes_on) {
  TemporaryDirectory const folder;
  auto const dead = state_file(folder.path(), 1);
  auto const missing = (folder.path() / "missing").string();
  auto const end = run_command({"clean", missing, folder.path().string()});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr(missing));
  EXPECT_FALSE(fs::exists(dead));
}

TEST(Clean, sweeps_shared_memory_that_no_process_holds) {
  auto const orphan = "/dev/shm" + crossrank::node::unique_segment_name();
  auto const held = "/dev/shm" + crossrank::node::unique_segment_name();
  std::ofstream(orphan) << "x";
  std::ofstream(held) << "x";
  auto const lock = hold(held);
  auto const end = run_command({"clean"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_FALSE(fs::exists(orphan)) << end.out;
  EXPECT_TRUE(fs::exists(held)) << end.out;
  fs::remove(held);
}

}  // namespace
