// Tests every exit code that the help of the commands for checkpoints documents.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <crossrank/json.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/tools/checkpoint_command.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;
using test::CheckpointCommand;
using test::CommandEnd;
using test::CommandRun;
using test::run_command;
using testing::HasSubstr;
using testing::Not;

// A job may finish before a signal reaches it; the test then tries again.
constexpr int max_tries = 8;

class ExitCodes : public CheckpointCommand {
 protected:
  [[nodiscard]] fs::path large() const { return folder_.path() / "large"; }

  /// Starts one of two ranks without a launcher.
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

TEST_F(ExitCodes, are_0_done_1_damaged_2_wrong_usage_3_error_of_the_system) {
  EXPECT_EQ(consolidate().exit_code, 0);
  EXPECT_EQ(consolidate().exit_code, 2) << "the output exists";
  EXPECT_EQ(consolidate({"--no-such-option"}).exit_code, 2);
  EXPECT_EQ(run_command({"consolidate", (folder_.path() / "nowhere").string(), out().string()}).exit_code, 3);
  fs::resize_file(shards() / "rank1.safetensors", 40);
  EXPECT_EQ(consolidate({"--force"}).exit_code, 1);
  EXPECT_EQ(run_command({"verify", shards().string()}).exit_code, 1);
}

TEST_F(ExitCodes, is_2_with_a_way_out_when_a_launcher_spreads_the_ranks_over_hosts) {
  std::map<std::string, std::string> const launcher{{"RANK", "0"},
                                                    {"WORLD_SIZE", "4"},
                                                    {"LOCAL_RANK", "0"},
                                                    {"LOCAL_WORLD_SIZE", "2"},
                                                    {"CROSSRANK_JOB_ID", "hosts" + std::to_string(::getpid())}};
  for (auto const& [name, value] : launcher) ::setenv(name.c_str(), value.c_str(), 1);
  auto const end = consolidate();
  for (auto const& [name, value] : launcher) ::unsetenv(name.c_str());
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.err,
              HasSubstr("only ranks of one host: expected all ranks on this host, got 4 ranks on several hosts"));
  EXPECT_THAT(end.err, HasSubstr("crossrank plan"));
  EXPECT_THAT(end.err, Not(HasSubstr("plugin"))) << "no plugin helps: the command cannot load it";
}

TEST_F(ExitCodes, are_4_when_ranks_see_different_shards) {
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

TEST_F(ExitCodes, are_4_when_a_rank_was_lost) {
  test::make_large_shards(large());
  int code = 0;
  for (int i = 0; i < max_tries && code == 0; ++i) {
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

/// Returns the process id of a rank of a command; -1 when there is none.
pid_t rank_process(pid_t command, int rank) {
  auto const task = "/proc/" + std::to_string(command) + "/task/" + std::to_string(command) + "/children";
  std::ifstream children(task);
  for (pid_t child = 0; children >> child;) {
    std::ifstream in("/proc/" + std::to_string(child) + "/environ", std::ios::binary);
    for (std::string variable; std::getline(in, variable, '\0');) {
      if (variable == "RANK=" + std::to_string(rank)) return child;
    }
  }
  return -1;
}

bool has_finished_file(fs::path const& out) {
  std::error_code error;
  for (fs::recursive_directory_iterator at(out, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(".finished.")) return true;
  }
  return false;
}

TEST_F(ExitCodes, are_4_when_a_process_is_killed_and_finished_files_stay) {
  test::make_large_shards(large());
  std::vector<std::string> const command{"consolidate", large().string(), out().string(),     "-n",  "3", "--json",
                                         "--progress",  "lines",          "--max-shard-size", "20MB"};
  CommandEnd end;
  // All files may be published before the signal arrives; the test then tries again.
  for (int i = 0; i < max_tries && end.exit_code != 4; ++i) {
    fs::remove_all(out());
    CommandRun run(command);
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!has_finished_file(out()) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(
          std::chrono::milliseconds(5));  // polls, because the file system gives no notification
    auto const rank = rank_process(run.pid(), i % 2 == 0 ? 2 : 0);
    if (rank > 0) ::kill(rank, SIGKILL);
    end = run.finish(std::chrono::seconds(150));
    ASSERT_TRUE(end.exit_code == 4 || end.exit_code == 0) << end.exit_code << end.err;
  }
  ASSERT_EQ(end.exit_code, 4);
  EXPECT_THAT(end.err, testing::HasSubstr("crossrank consolidate: the job failed"));
  auto const answer = Json::parse(end.out);
  EXPECT_EQ(answer.at("exit_code"), 4);
  EXPECT_EQ(answer.at("ok"), false);
  EXPECT_TRUE(answer.contains("error")) << end.out;
  EXPECT_TRUE(has_finished_file(out())) << end.err;

  auto resumed = command;
  resumed.emplace_back("--resume");
  auto const second = run_command(resumed);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_GE(Json::parse(second.out).at("resumed_files").get<int>(), 1);
  // A script that repeats the command until it succeeds must terminate.
  EXPECT_EQ(run_command(resumed).exit_code, 0);
}

TEST_F(ExitCodes, are_128_plus_the_signal) {
  test::make_large_shards(large());
  int code = 0;
  for (int i = 0; i < max_tries && code == 0; ++i) {
    CommandRun run({"consolidate", large().string(), out().string(), "--progress", "bar", "--max-shard-size", "2MB"});
    ASSERT_TRUE(run.wait_for(" of "));
    run.signal(SIGTERM);
    code = run.finish().exit_code;
    EXPECT_EQ(fs::exists(out()), code == 0);
    fs::remove_all(out());
  }
  EXPECT_EQ(code, 128 + SIGTERM);
}

TEST_F(ExitCodes, are_128_plus_the_signal_that_only_one_of_several_ranks_got) {
  test::make_large_shards(large());
  CommandEnd end;
  for (int i = 0; i < max_tries && end.exit_code <= 0; ++i) {
    fs::remove_all(out());
    CommandRun run(
        {"consolidate", large().string(), out().string(), "-n", "3", "--progress", "bar", "--max-shard-size", "2MB"});
    auto const rank = run.wait_for(" of ") ? rank_process(run.pid(), 0) : 0;
    if (rank > 0) ::kill(rank, SIGHUP);
    end = run.finish(std::chrono::seconds(150));
  }
  EXPECT_EQ(end.exit_code, 128 + SIGHUP) << end.err;
  EXPECT_THAT(end.err, testing::HasSubstr("SIGHUP"));
}

TEST_F(ExitCodes, are_3_with_a_hint_when_no_descriptor_is_left) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the undefined behaviour sanitizer needs descriptors of its own";
#endif
  bool hinted = false;
  for (int limit = 4; limit < 24; ++limit) {
    auto const script =
        "ulimit -n " + std::to_string(limit) + "; exec '" + CROSSRANK_COMMAND + "' verify /nowhere --json";
    auto const end = run_command({"run", "-n", "1", "--no-prefix", "--", "/bin/sh", "-c", script});
    if (end.exit_code == 127) continue;  // not even the libraries can be opened
    EXPECT_EQ(end.exit_code, 3) << limit << ": " << end.exit_code << end.err << end.out;
    hinted = hinted || end.out.find("ulimit -u, -v and -n") != std::string::npos;
  }
  EXPECT_TRUE(hinted);
}

TEST_F(ExitCodes, are_returned_at_once_by_a_rank_that_waits_for_the_others) {
  test::make_large_shards(large());
  auto const first = rank_of_two(0, "alone");
  ASSERT_TRUE(first->wait_for_state('S'));
  first->signal(SIGINT);
  auto const end = first->finish();
  EXPECT_EQ(end.exit_code, 128 + SIGINT) << end.err;
  EXPECT_THAT(end.err, testing::HasSubstr("ended by signal 2 (SIGINT)"));
}

/// The signal reaches ranks that have no handler yet, that wait for each other, and that work.
TEST_F(ExitCodes, are_128_plus_the_signal_while_the_ranks_start) {
  test::make_large_shards(large());
  for (int i = 0; i < 24; ++i) {
    int const number = i % 2 == 0 ? SIGTERM : SIGXCPU;
    CommandRun run({"consolidate", large().string(), out().string(), "-n", "3", "--max-shard-size", "2MB"});
    ASSERT_TRUE(run.wait_for_state('S'));
    std::this_thread::sleep_for(std::chrono::milliseconds(4 * i));
    run.signal(number);
    auto const end = run.finish();
    bool const had_no_handler = end.signal == number;  // the command itself
    EXPECT_TRUE(had_no_handler || end.exit_code == 0 || end.exit_code == 128 + number) << end.exit_code << end.err;
    EXPECT_EQ(fs::exists(out()), end.exit_code == 0);
    fs::remove_all(out());
  }
}

}  // namespace
}  // namespace crossrank
