// Workspaces in several processes: killed writers, two jobs in one directory, and the stale caches of a second node.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/crash_point.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"
#include "workspace/nfs/clean_workspace.hpp"
#include "workspace/nfs/state_file_names.hpp"
#include "workspace/nfs/file_state_store.hpp"

extern char** environ;

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::expect_same;
using test::ProcessRanks;
using test::run_ranks;
using test::sample_state;
using ::testing::HasSubstr;

constexpr std::array points{"platform.atomic_file.created",  "platform.atomic_file.reserved",
                            "platform.atomic_file.written",  "platform.atomic_file.synced",
                            "platform.atomic_file.closed",   "platform.atomic_file.linked",
                            "platform.atomic_file.unlinked", "platform.atomic_file.committed"};

void write(NFSWorkspace& workspace, int seed) {
  auto const state = sample_state(seed);
  workspace.write_configs_and_weights(state.config, state.weights);
}

std::size_t entries(fs::path const& path) {
  return as_size(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

/// Writes once, then again, and dies at the given visit of the given crash point.
CROSSRANK_RANK_SCENARIO(dies_while_writing) {
  NFSWorkspace workspace(self.arguments.at(0), {.rank = 0});
  platform::arm_crash_point(self.arguments.at(1), std::stoi(self.arguments.at(2)));
  for (int seed = 1; seed <= 3; ++seed) write(workspace, seed);
  return 0;
}

TEST(NFSWorkspaceKilled, leaves_the_old_or_new_state_and_the_next_start_cleans_up) {
  for (auto const* point : points) {
    for (int const visit : {1, 3}) {
      test::TemporaryDirectory const root;
      auto const job =
          run_ranks(1, "dies_while_writing", {.arguments = {root.path().string(), point, std::to_string(visit)}});
      ASSERT_EQ(job.ranks.at(0).signal, SIGKILL) << point << '\n' << job.text();
      // the reader finds the previous state, the new one, or nothing if it was the first; never an error
      auto const seen = NFSWorkspace::open(root.path()).read_configs_and_weights_from_rank(0);
      EXPECT_TRUE(visit == 1 || seen.has_value()) << point;
      if (seen) {
        auto const seed = seen->config.at("seed").get<int>();
        EXPECT_TRUE(seed == visit || seed == visit - 1) << point << ' ' << seed;
        expect_same(*seen, sample_state(seed));
      }
      NFSWorkspace const next(root.path(), {.rank = 0});
      EXPECT_EQ(entries(root.path()), 0U) << point;
    }
  }
}

TEST(NFSWorkspaceKilled, is_cleaned_up_by_the_command_too) {
  for (auto const* point : points) {
    test::TemporaryDirectory const root;
    auto const job = run_ranks(1, "dies_while_writing", {.arguments = {root.path().string(), point, "2"}});
    ASSERT_EQ(job.ranks.at(0).signal, SIGKILL) << point;
    for (auto const& file : workspace::clean_workspace(root.path()))
      EXPECT_TRUE(file.removed) << file.name << ": " << file.why;
    EXPECT_EQ(entries(root.path()), 0U) << point;
  }
}

/// Writes, reports that, and waits until it is killed.
CROSSRANK_RANK_SCENARIO(writes_and_stays) {
  NFSWorkspace workspace(self.arguments.at(0), {.rank = self.rank});
  write(workspace, 100 + self.rank);
  self.say("written");
  for (;;) ::pause();
}

TEST(NFSWorkspaceProcesses, share_a_directory) {
  test::TemporaryDirectory const root;
  auto const path = root.path() / "made" / "by" / "all";
  ProcessRanks ranks(3, "writes_and_stays", {.arguments = {path.string()}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_line(rank, "written"));
  auto const reader = NFSWorkspace::open(path);
  for (int rank = 0; rank < 3; ++rank)
    expect_same(reader.read_configs_and_weights_from_rank(rank).value(), sample_state(100 + rank));
  EXPECT_EQ(entries(path), 3U);
  for (int rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
  (void)ranks.wait();
}

TEST(NFSWorkspaceProcesses, detect_two_live_jobs_in_one_directory) {
  test::TemporaryDirectory const root;
  ProcessRanks other_job(1, "writes_and_stays", {.arguments = {root.path().string()}});
  ASSERT_TRUE(other_job.wait_for_line(0, "written"));
  auto const theirs = fs::directory_iterator(root.path())->path().filename().string();
  NFSWorkspace mine(root.path(), {.rank = 0});
  write(mine, 1);
  try {
    (void)mine.read_configs_and_weights_from_rank(0);
    FAIL() << "two writers' files were not noticed";
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().got, HasSubstr(theirs));
  }
  mine.clean();
  EXPECT_EQ(fs::directory_iterator(root.path())->path().filename().string(), theirs)
      << "the other job's file must stay";
  EXPECT_FALSE(workspace::clean_workspace(root.path()).at(0).removed);
  other_job.signal(0, SIGKILL);
  ASSERT_TRUE(other_job.wait_for_exit(0));
  EXPECT_TRUE(workspace::clean_workspace(root.path()).at(0).removed);
  (void)other_job.wait();
}

/// The same directory as another node of an NFS export sees it. Names and attributes are cached for two seconds.
class SecondNode {
 public:
  SecondNode(fs::path const& source, fs::path const& mount_point) : mount_point_(mount_point) {
    fs::create_directory(mount_point);
    mounted_ = run(
        {"bindfs", "-o", "entry_timeout=2,attr_timeout=2,negative_timeout=2", source.string(), mount_point.string()});
  }
  ~SecondNode() {
    if (mounted_ && !run({"fusermount", "-u", mount_point_.string()})) (void)run({"umount", mount_point_.string()});
  }
  SecondNode(SecondNode const&) = delete;
  SecondNode& operator=(SecondNode const&) = delete;
  [[nodiscard]] bool mounted() const noexcept { return mounted_; }

 private:
  static bool run(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    if (::posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0) return false;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  fs::path mount_point_;
  bool mounted_ = false;
};

TEST(NFSWorkspaceStaleness, never_shows_old_or_missing_data_on_a_second_node) {
  test::TemporaryDirectory const root;
  fs::create_directory(root.path() / "source");
  SecondNode const node(root.path() / "source", root.path() / "node");
  if (!node.mounted()) GTEST_SKIP() << "bindfs could not mount here: it or /dev/fuse is missing, or refused";
  NFSWorkspace writer(root.path() / "source", {.rank = 0});
  auto const reader = NFSWorkspace::open(root.path() / "node");
  auto const state_of = [](int seed) { return sample_state(seed); };
  // A name that was looked up before the file existed stays missing until the cache expires.
  auto const next = workspace::next_state_file(0);
  auto expected = next;
  expected.counter += 1;
  EXPECT_FALSE(fs::exists(root.path() / "node" / expected.name()));
  auto const probed = state_of(0);
  auto const published = writer.store()->write_for_range(probed.config, probed.weights);
  ASSERT_EQ(published.file, expected);
  expect_same(reader.store()->read_published(published), probed);
  for (int seed = 1; seed <= 100; ++seed) {
    auto const state = state_of(seed);
    auto const now = writer.store()->write_for_range(state.config, state.weights);
    expect_same(reader.store()->read_published(now), state);
    writer.store()->retire(now);
  }
}

}  // namespace
}  // namespace crossrank
