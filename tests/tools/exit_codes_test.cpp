// Each exit code that the help of the commands for checkpoints promises.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <crossrank/safetensors.hpp>

#include "tests/tools/checkpoint_command.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::CheckpointCommand;
using test::CommandRun;
using test::run_command;
using testing::HasSubstr;

// A job may be done before a signal reaches it; then it is tried again.
constexpr int most_tries = 8;

class ExitCodes : public CheckpointCommand {
 protected:
  [[nodiscard]] fs::path large() const { return folder_.path() / "large"; }

  /// One of two ranks that no launcher watches.
  [[nodiscard]] std::unique_ptr<CommandRun> rank_of_two(int rank, std::string const& job) const {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("CROSSRANK_JOB_ID", (job + std::to_string(::getpid())).c_str(), 1);
    auto run = std::make_unique<CommandRun>(std::vector<std::string>{"consolidate", large().string(), out().string(),
                                                                     "--progress", "bar", "--max-shard-size", "2MB"});
    for (auto const* name : {"RANK", "WORLD_SIZE", "CROSSRANK_JOB_ID"}) ::unsetenv(name);
    return run;
  }
};

TEST_F(ExitCodes, are_0_done_1_damaged_2_wrong_use_3_refused_by_the_system) {
  EXPECT_EQ(consolidate().exit_code, 0);
  EXPECT_EQ(consolidate().exit_code, 2) << "the output exists";
  EXPECT_EQ(consolidate({"--no-such-option"}).exit_code, 2);
  EXPECT_EQ(run_command({"consolidate", (folder_.path() / "nowhere").string(), out().string()}).exit_code, 3);
  fs::resize_file(shards() / "rank1.safetensors", 40);
  EXPECT_EQ(consolidate({"--force"}).exit_code, 1);
  EXPECT_EQ(run_command({"verify", shards().string()}).exit_code, 1);
}

TEST_F(ExitCodes, are_4_where_ranks_see_different_things) {
  fs::rename(shards(), folder_.path() / "shards0");
  fs::create_directories(folder_.path() / "shards1");
  for (int rank = 0; rank < 2; ++rank)
    save_safetensors(folder_.path() / "shards1" / ("rank" + std::to_string(rank) + ".safetensors"),
                     test::sample_weights(2, 8, 6, 3 + static_cast<unsigned>(rank)));
  auto const script = "exec " + std::string(CROSSRANK_COMMAND) + " consolidate " +
                      (folder_.path() / "shards").string() + "$RANK " + out().string();

  auto const end = run_command({"run", "-n", "2", "--", "sh", "-c", script});

  EXPECT_EQ(end.exit_code, 4) << end.err;
  EXPECT_THAT(end.err, HasSubstr("ranks 0 and 1 see different shards"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(ExitCodes, are_4_where_a_rank_was_lost) {
  test::make_large_shards(large());
  int code = 0;
  for (int i = 0; i < most_tries && code == 0; ++i) {
    auto const first = rank_of_two(0, "lost" + std::to_string(i));
    auto const second = rank_of_two(1, "lost" + std::to_string(i));
    ASSERT_TRUE(first->wait_for(" of "));
    second->signal(SIGKILL);
    static_cast<void>(second->finish());
    auto const end = first->finish();
    code = end.exit_code;
    if (code != 0) {
      EXPECT_THAT(end.err, HasSubstr("rank 1"));
    }
    fs::remove_all(out());
  }
  EXPECT_EQ(code, 4);
}

TEST_F(ExitCodes, are_128_and_the_signal_that_ended_it) {
  test::make_large_shards(large());
  int code = 0;
  for (int i = 0; i < most_tries && code == 0; ++i) {
    CommandRun run({"consolidate", large().string(), out().string(), "--progress", "bar", "--max-shard-size", "2MB"});
    ASSERT_TRUE(run.wait_for(" of "));
    run.signal(SIGTERM);
    code = run.finish().exit_code;
    EXPECT_EQ(fs::exists(out()), code == 0);
    fs::remove_all(out());
  }
  EXPECT_EQ(code, 128 + SIGTERM);
}

TEST_F(ExitCodes, come_at_once_from_a_rank_that_waits_for_the_others) {
  test::make_large_shards(large());
  auto const first = rank_of_two(0, "alone");
  ASSERT_TRUE(first->wait_for_state('S'));
  first->signal(SIGINT);
  auto const end = first->finish();
  EXPECT_EQ(end.signal, SIGINT) << end.exit_code << end.err;
}

}  // namespace
}  // namespace crossrank
