#include <crossrank/workspace/nfs_workspace.hpp>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
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

/// Which files a workspace keeps, and which ones of ended processes it removes.
using NFSLeftovers = test::NFSDirectory;

TEST_F(NFSLeftovers, reads_the_newest_and_keeps_two) {
  auto workspace = open(0);
  for (int seed = 0; seed < 5; ++seed) write(workspace, seed);
  EXPECT_EQ(names().size(), 2U);
  expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(4));
}

TEST_F(NFSLeftovers, removes_files_of_a_dead_process_for_its_own_rank_only) {
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

/// A worker process of a rank, such as a data loader, may outlive the killed rank for a while.
TEST_F(NFSLeftovers, removes_files_of_a_dead_process_whose_child_is_alive) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  platform::Fd const from_child(ends[0]);
  platform::Fd to_parent(ends[1]);
  pid_t const writer = ::fork();
  if (writer == 0) {
    auto workspace = open(0);
    write(workspace, 7);
    if (::fork() == 0) {
      ::alarm(60);  // ends also when the test has failed
      pid_t const self = ::getpid();
      if (::write(to_parent.get(), &self, sizeof self) == sizeof self) ::pause();
      ::_exit(0);
    }
    ::_exit(0);
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

/// Writes of a forked child once removed the file of its parent, so that readers took the child's state.
TEST_F(NFSLeftovers, keeps_the_files_of_the_parent_when_a_forked_child_writes) {
  auto workspace = open(0);
  write(workspace, 1);
  auto const of_parent = only_file();
  pid_t const child = ::fork();
  if (child == 0) {
    for (int seed = 2; seed < 6; ++seed) write(workspace, seed);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(of_parent));
  EXPECT_THROW(static_cast<void>(workspace.read_configs_and_weights_from_rank(0)), FormatError);
}

/// The child has no thread that could free a mutex which another thread of its parent held.
TEST_F(NFSLeftovers, lets_a_forked_child_drop_a_workspace_while_other_threads_make_some) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      while (!stop) {
        auto workspace = open(rank);
        write(workspace, rank);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    std::optional workspace(open(0));
    pid_t const child = ::fork();
    if (child == 0) {
      ::alarm(60);
      workspace.reset();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "fork " << i;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST_F(NFSLeftovers, keeps_existing_files_when_asked) {
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

TEST_F(NFSLeftovers, never_removes_files_of_this_process) {
  auto first = open(0);
  write(first, 1);
  auto const second = open(0);
  expect_same(second.read_configs_and_weights_from_rank(0).value(), sample_state(1));
}

TEST_F(NFSLeftovers, keeps_two_files_after_writes_of_many_workspaces) {
  for (int i = 0; i < 10; ++i) {
    auto workspace = open(0);
    for (int j = 0; j < 1 + i % 3; ++j) write(workspace, 10 * i + j);
    EXPECT_LE(names().size(), 2U) << i;
    expect_same(workspace.read_configs_and_weights_from_rank(0).value(), sample_state(10 * i + i % 3));
  }
  open(0).clean();
  EXPECT_EQ(names().size(), 0U);
}

TEST_F(NFSLeftovers, keeps_files_that_another_workspace_of_this_process_holds) {
  auto first = open(0);
  write(first, 1);
  auto second = open(0);
  for (int i = 2; i < 6; ++i) write(second, i);
  second.clean();
  expect_same(second.read_configs_and_weights_from_rank(0).value(), sample_state(1));
}

TEST_F(NFSLeftovers, clean_removes_all_files_of_the_rank) {
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

TEST_F(NFSLeftovers, keeps_a_foreign_file_with_the_name_of_a_state) {
  auto const name = workspace::StateFileName{.rank = 0, .writer = 77, .counter = 5}.name();
  put(name, "somebody's own data");
  (void)open(0);
  EXPECT_THAT(names(), ::testing::ElementsAre(name));
}

TEST_F(NFSLeftovers, keeps_files_of_unknown_writers_unless_forced) {
  test::leave_state(root(), {.rank = 0, .writer = 77, .counter = 5});
  test::FaultySystem os;
  os.fail_always(test::Call::flock, ENOLCK);
  platform::ScopedSystem const scope(os);
  (void)open(0);
  EXPECT_EQ(names().size(), 1U) << "crossrank clean keeps it as well";
  (void)NFSWorkspace(root(), {.rank = 0, .existing = Existing::force});
  EXPECT_TRUE(names().empty());
}

TEST_F(NFSLeftovers, warns_once_when_it_deletes_a_state_of_a_clean_exit) {
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

TEST_F(NFSLeftovers, keeps_published_files_until_their_range_is_closed) {
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

TEST_F(NFSLeftovers, keeps_both_states_beside_overlapping_ranges) {
  auto workspace = open(0);
  write(workspace, 1);
  write(workspace, 2);
  auto const states = names();
  auto& store = *workspace.store();
  auto const range = sample_state(3);
  auto const outer = store.write_for_range(range.config, range.weights);
  auto const inner = store.write_for_range(range.config, range.weights);
  store.withdraw(inner);
  store.withdraw(outer);
  EXPECT_EQ(names(), states);
  {
    auto const other = NFSWorkspace(root(), {.rank = 0, .existing = Existing::remove_killed});
    auto const first = other.store()->write_for_range(range.config, range.weights);
    auto const second = open(0).store()->write_for_range(range.config, range.weights);
    other.store()->withdraw(first);
    EXPECT_TRUE(fs::exists(root() / second.file.name()));
    fs::remove(root() / second.file.name());
  }
  EXPECT_EQ(names(), states);
}

TEST_F(NFSLeftovers, of_a_clean_exit_stay_when_only_those_of_killed_processes_go) {
  for (std::uint64_t const writer : {77U, 78U}) {
    workspace::StateFileName const file{.rank = 0, .writer = writer, .counter = 1};
    test::leave_state(root(), file);
    if (writer == 77) {  // marked as left on purpose
      ASSERT_EQ(::chmod((root() / file.name()).c_str(), 0400), 0);
    }
  }
  (void)NFSWorkspace(root(), {.rank = 0, .existing = Existing::remove_killed});
  EXPECT_THAT(only_file().string(), HasSubstr("000000000000004d-"));
}

/// A process may be killed between two removals, and a reader may look then.
TEST_F(NFSLeftovers, are_removed_oldest_first) {
  {
    auto workspace = open(0);
    write(workspace, 1);
    write(workspace, 2);
    test::FaultySystem os;
    os.fail(test::Call::unlinkat, 2, EIO);
    platform::ScopedSystem const scope(os);
    EXPECT_THROW(workspace.clean(), IoError);
  }
  expect_same(NFSWorkspace::open(root()).read_configs_and_weights_from_rank(0).value(), sample_state(2));
}

TEST_F(NFSLeftovers, removes_files_older_than_the_range) {
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

}  // namespace
}  // namespace crossrank
