// Gathers through files while the directory is full, read-only or removed; and ranks that make different calls.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/workspace/nfs_workspace.hpp>
#include <crossrank/parallel.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/directory.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/nfs/writer_lock.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::Call;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int unlucky = 1;

/// Fails a system call of one rank during a gather through files, then gathers again. Arguments: directory, call,
/// errno.
CROSSRANK_RANK_SCENARIO(gather_through_failing_files) {
  fs::path const directory = self.arguments.at(0);
  auto const call = static_cast<Call>(std::stoi(self.arguments.at(1)));
  int const error = std::stoi(self.arguments.at(2));
  test::FaultySystem system;
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    auto const gather = [&](int seed) {
      auto items = get_tensors_parallel(test::sample_tensor(self.rank, seed), world, {.workspace_path = directory});
      for (std::size_t i = 0; i < items.size(); ++i) test::require_sample(items[i], static_cast<int>(i), seed);
      items.close();
    };
    test::say_verdict(self, "failing", [&] {
      platform::ScopedSystem const scoped(system);
      if (self.rank == unlucky) system.fail_always(call, error);
      gather(1);
    });
    gather(2);
    world.close();
  });
}

class FailingFiles : public testing::TestWithParam<std::pair<Call, int>> {};

TEST_P(FailingFiles, cause_an_error_on_all_ranks_and_leave_the_group_usable) {
  auto const [call, error] = GetParam();
  test::TemporaryDirectory const temporary;
  auto const directory = temporary.path() / "workspace";
  auto const job =
      test::run_ranks(3, "gather_through_failing_files",
                      {.arguments = {directory, std::to_string(static_cast<int>(call)), std::to_string(error)}});
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  EXPECT_EQ(test::verdict_of(job.ranks.at(unlucky), "failing").code, "io") << job.text();
  for (std::size_t const rank : {0U, 2U}) {
    auto const verdict = test::verdict_of(job.ranks.at(rank), "failing");
    EXPECT_EQ(verdict.code, "remote") << job.text();
    EXPECT_THAT(verdict.blames, ElementsAre(unlucky)) << job.text();
    EXPECT_THAT(verdict.text, HasSubstr(directory.string()));
  }
  EXPECT_TRUE(fs::is_empty(directory)) << fs::directory_iterator(directory)->path();
}

INSTANTIATE_TEST_SUITE_P(Faults, FailingFiles,
                         testing::Values(std::pair{Call::fallocate, ENOSPC}, std::pair{Call::pwrite, EDQUOT},
                                         std::pair{Call::fsync, EIO}, std::pair{Call::openat, EROFS},
                                         std::pair{Call::linkat, ENOSPC}),
                         [](testing::TestParamInfo<std::pair<Call, int>> const& named) {
                           return std::string(test::call_names.at(as_index(named.param.first)));
                         });

/// Arguments: directory, and what happens to it between the two barrier rounds.
CROSSRANK_RANK_SCENARIO(lose_the_directory) {
  fs::path const directory = self.arguments.at(0);
  test::FaultySystem system;
  system.fake_clock();  // so that the receiver's retries on NFS take no time
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto items = get_tensors_parallel(test::sample_tensor(self.rank, 1), world, {.workspace_path = directory});
    if (items.is_receiver()) {
      fs::remove_all(directory);
      platform::ScopedSystem const scoped(system);
      test::require_sample(items[1], 1, 1);
    }
    items.close();
  });
}

TEST(FaultsDirectory, ends_the_range_on_all_ranks_when_it_vanishes) {
  test::TemporaryDirectory const temporary;
  auto const job = test::run_ranks(3, "lose_the_directory", {.arguments = {temporary.path() / "workspace"}});
  auto const verdict = test::expect_one_verdict(job, {0});
  EXPECT_EQ(verdict.code, "peer_lost") << job.text();
  EXPECT_TRUE(verdict.blames_only(0)) << job.text();
  auto const receiver = test::verdict_of(job.ranks.at(0));
  EXPECT_EQ(receiver.code, "io") << job.text();
  EXPECT_THAT(receiver.text, HasSubstr(temporary.path().string()));
}

CROSSRANK_RANK_SCENARIO(use_a_directory_that_cannot_be_written) {
  if (::geteuid() == 0 && (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0)) return 77;
  return test::end_with_verdict(self, [&] {
    auto world = connect(test::fault_options());
    test::say_verdict(self, "refused", [&] {
      get_tensors_parallel(test::sample_tensor(self.rank, 1), world, {.workspace_path = "/proc/self/crossrank"})
          .close();
    });
    test::gather_everything(world, 0, 2);
    world.close();
  });
}

TEST(FaultsDirectory, causes_an_error_on_all_ranks_when_it_is_not_writable) {
  auto const job = test::run_ranks(3, "use_a_directory_that_cannot_be_written");
  if (job.ranks.front().exit_code == 77) GTEST_SKIP() << "this process cannot become an ordinary user";
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  auto const verdict = test::expect_one_verdict(job, {}, "refused");
  EXPECT_EQ(verdict.code, "io") << job.text();
  EXPECT_THAT(verdict.text, HasSubstr("/proc/self/crossrank"));
}

/// Regression: between close and link, a second job that cleaned the directory took the file for that of a dead writer.
TEST(FaultsDirectory, keeps_a_file_locked_while_it_gets_its_name) {
  test::TemporaryDirectory const temporary;
  NFSWorkspace writer(temporary.path(), {.rank = 0});
  auto const directory = platform::Directory::open(temporary.path(), "test");
  test::FaultySystem system;
  int looked = 0;
  system.on_name = [&](Call call, std::string const&) {
    if (call != Call::linkat && call != Call::unlinkat) return;
    for (auto const& name : directory.names("test")) {
      EXPECT_EQ(workspace::probe_writer(directory, name).writer, workspace::WriterState::alive) << name;
      ++looked;
    }
  };
  {
    platform::ScopedSystem const scoped(system);
    writer.write_configs_and_weights(1, {});
  }
  EXPECT_EQ(looked, 3);  // the temporary name before the link, and both names before the temporary one is removed
}

/// Argument: how the call of rank 1 differs.
CROSSRANK_RANK_SCENARIO(disagree) {
  std::string_view const what = self.arguments.at(0);
  bool const differs = self.rank == 1;
  fs::path const directory = self.arguments.at(1);
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    auto const mine = test::sample_tensor(self.rank, 1);
    std::vector<int> ranks{0, 1, 2};
    GatherOptions options;
    if (differs && what == "order") ranks = {0, 2, 1};
    if (differs && what == "receiver") ranks = {1, 0, 2};
    if (differs && what == "fewer") ranks = {0, 2};
    if (differs && what == "exchange") options.workspace_path = directory;
    if (differs && what == "release") options.release = Release::lazy;
    if (differs && what == "kind") {
      get_configs_parallel({.config = 1}, ranks, world).close();
    } else if (differs && what == "operation") {
      world.barrier();
    } else {
      get_tensors_parallel(mine, ranks, world, options).close();
    }
    world.barrier();
  });
}

class Disagreement : public testing::TestWithParam<char const*> {};

TEST_P(Disagreement, raises_mismatch_error_on_all_ranks) {
  test::TemporaryDirectory const temporary;
  auto const directory = temporary.path() / "workspace";
  auto const job = test::run_ranks(3, "disagree", {.arguments = {GetParam(), directory}});
  auto const verdict = test::expect_one_verdict(job);
  EXPECT_EQ(verdict.code, "mismatch") << job.text();
  EXPECT_TRUE(verdict.blames_only(1)) << job.text();
  EXPECT_TRUE(!fs::exists(directory) || fs::is_empty(directory)) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Faults, Disagreement,
                         testing::Values("order", "receiver", "fewer", "exchange", "release", "kind", "operation"),
                         [](testing::TestParamInfo<char const*> const& named) { return std::string(named.param); });

}  // namespace
}  // namespace crossrank
