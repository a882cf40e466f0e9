#include "tools/launch/launcher.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/leak_check.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/tools/command_run.hpp"

namespace {

using crossrank::test::CommandRun;
using crossrank::test::process_state;
using crossrank::test::run_command;
using crossrank::test::scaled_timeout;
using crossrank::test::step_timeout;
using crossrank::test::Streams;
using crossrank::test::TemporaryDirectory;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

std::vector<std::string> shell(int ranks, std::string const& script, std::vector<std::string> options = {}) {
  std::vector<std::string> arguments{"run", "-n", std::to_string(ranks)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", "/bin/sh", "-c", script});
  return arguments;
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::multiset<std::string> line_set(std::string const& text) {
  auto const lines = lines_of(text);
  return {lines.begin(), lines.end()};
}

bool gone_within(pid_t pid, milliseconds limit) {
  auto const deadline = Clock::now() + scaled_timeout(limit);
  while (process_state(pid) != '-' && process_state(pid) != 'Z') {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// Returns the process id that a script wrote to a file.
pid_t pid_in(std::filesystem::path const& file) {
  auto const deadline = Clock::now() + step_timeout;
  while (Clock::now() < deadline) {
    std::ifstream in(file);
    std::string line;
    if (std::getline(in, line) && !in.eof()) return std::stoi(line);
    std::this_thread::sleep_for(milliseconds(2));
  }
  return -1;
}

TEST(Run, gives_each_rank_its_number_and_all_ranks_one_random_job_id) {
  auto const script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE; echo job $CROSSRANK_JOB_ID >&2";
  auto const first = run_command(shell(3, script));
  auto const second = run_command(shell(3, script));
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(line_set(first.out), (std::multiset<std::string>{"[0] 0/3 0/3", "[1] 1/3 1/3", "[2] 2/3 2/3"}));
  std::set<std::string> jobs;
  for (auto const& line : lines_of(first.err + second.err)) jobs.insert(line.substr(line.find("job ")));
  ASSERT_EQ(jobs.size(), 2U) << first.err << second.err;
  EXPECT_EQ(jobs.begin()->size(), 4U + 32U);
}

TEST(Run, hides_the_variables_of_other_launchers) {
  ::setenv("OMPI_COMM_WORLD_RANK", "5", 1);
  ::setenv("SLURM_STEP_ID", "1", 1);
  auto const end = run_command(shell(1, "echo ${OMPI_COMM_WORLD_RANK-none} ${SLURM_STEP_ID-none} ${HOME+kept}"));
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("SLURM_STEP_ID");
  EXPECT_THAT(end.out, HasSubstr("[0] none none"));
}

TEST(Run, keeps_lines_whole_and_in_order) {
  auto const end =
      run_command(shell(4, "i=0; while [ $i -lt 2000 ]; do echo $RANK says $i and goes on; i=$((i+1)); done"));
  std::map<char, int> next;
  for (auto const& line : lines_of(end.out)) {
    char const rank = line.at(1);
    ASSERT_EQ(line, std::string("[") + rank + "] " + rank + " says " + std::to_string(next[rank]++) + " and goes on");
  }
  EXPECT_EQ(next, (std::map<char, int>{{'0', 2000}, {'1', 2000}, {'2', 2000}, {'3', 2000}}));
}

TEST(Run, forwards_all_bytes_and_unfinished_lines) {
  auto const end = run_command(shell(1, R"(printf 'a\000b\377\r\n\nend')"));
  EXPECT_EQ(end.out, std::string("[0] a\0b\xff\r\n[0] \n[0] end\n", 23));
}

TEST(Run, splits_endless_lines_and_bounds_its_memory) {
  auto const end = run_command(shell(1, "head -c 300000 /dev/zero | tr '\\000' x"));
  auto const lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines.at(0), "[0] " + std::string(65'536, 'x'));
  EXPECT_EQ(lines.at(4), "[0]+ " + std::string(300'000 - 4 * 65'536, 'x'));
}

TEST(Run, adds_nothing_without_a_prefix) {
  EXPECT_EQ(run_command(shell(1, "printf 'one\\ntwo'", {"--no-prefix"})).out, "one\ntwo");
}

TEST(Run, gives_standard_input_to_rank_0_only) {
  auto const end = run_command(shell(3, "cat; echo end"), "typed\n");
  EXPECT_EQ(line_set(end.out), (std::multiset<std::string>{"[0] typed", "[0] end", "[1] end", "[2] end"}));
}

TEST(Run, forwards_terminal_input_to_rank_0) {
  CommandRun run(shell(2, "if [ $RANK = 0 ]; then read line; echo got $line; fi"), Streams::terminal);
  run.write("hello\n");
  EXPECT_TRUE(run.wait_for("[0] got hello"));
  EXPECT_EQ(run.finish().exit_code, 0);
}

TEST(Run, can_be_interrupted_from_a_terminal) {
  CommandRun run(shell(2, "echo ready; exec sleep 60"), Streams::terminal);
  ASSERT_TRUE(run.wait_for("[0] ready") && run.wait_for("[1] ready"));
  run.write("\x03");
  EXPECT_TRUE(run.wait_for("SIGINT"));
  EXPECT_EQ(run.finish().exit_code, 128 + SIGINT);
}

TEST(Run, returns_the_code_of_the_rank_that_failed_and_names_it) {
  auto const end = run_command(shell(3, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 60", {"--grace", "200ms"}));
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(end.err, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(end.err, HasSubstr("exit code 7"));
}

TEST(Run, returns_128_and_the_signal_that_ended_a_rank) {
  auto const end =
      run_command(shell(3, "if [ $RANK = 2 ]; then kill -KILL $$; fi; exec sleep 60", {"--grace", "200ms"}));
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_THAT(end.err, HasSubstr("rank 2 (pid "));
  EXPECT_THAT(end.err, HasSubstr("SIGKILL"));
}

TEST(Run, lets_the_other_ranks_report_before_it_ends_them) {
  auto const script =
      "if [ $RANK = 0 ]; then exit 3; fi; trap 'echo asked; exit 5' TERM; sleep 0.2; echo last line; while :; do "
      "sleep 0.05; done";
  auto const end = run_command(shell(2, script, {"--grace", "1600ms"}));
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.out, "[1] last line\n[1] asked\n");
}

TEST(Run, kills_ranks_that_ignore_the_request_after_the_grace_time) {
  auto const start = Clock::now();
  auto const end = run_command(shell(
      2, "trap '' TERM INT HUP; if [ $RANK = 0 ]; then exit 4; fi; while :; do sleep 1; done", {"--grace", "300ms"}));
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_LT(Clock::now() - start, step_timeout);
}

TEST(Run, leaves_no_grandchildren) {
  TemporaryDirectory const folder;
  auto const file = folder.path() / "pid";
  // One process in the rank's group, and one in its own session; both outlive their parent.
  auto const script = "trap '' HUP; sleep 60 & echo $! >" + file.string() +
                      ".1; setsid sh -c 'trap \"\" TERM; echo $$ >" + file.string() +
                      ".2; while :; do sleep 60; done' & while [ ! -s " + file.string() + ".2 ]; do :; done; exit 0";
  auto const end = run_command(shell(1, script, {"--grace", "300ms"}));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(process_state(pid_in(file.string() + ".1")), '-');
  EXPECT_EQ(process_state(pid_in(file.string() + ".2")), '-');
}

TEST(Run, ends_the_ranks_when_it_is_killed) {
  TemporaryDirectory const folder;
  auto const file = (folder.path() / "pid").string();
  CommandRun run(shell(2, "echo $$ >" + file + ".$RANK; exec sleep 60"));
  pid_t const zero = pid_in(file + ".0");
  pid_t const one = pid_in(file + ".1");
  ASSERT_GT(zero, 0);
  ASSERT_GT(one, 0);
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish().signal, SIGKILL);
  EXPECT_TRUE(gone_within(zero, seconds(10)));
  EXPECT_TRUE(gone_within(one, seconds(10)));
}

TEST(Run, ends_the_grandchildren_when_it_is_killed) {
  TemporaryDirectory const folder;
  auto const file = (folder.path() / "pid").string();
  // One process in the rank's group, one in the group without the job's variables, one in its own session.
  auto const script = "sleep 60 & echo $! >" + file + ".1; env -i sleep 60 & echo $! >" + file +
                      ".2; setsid sh -c 'trap \"\" TERM HUP; echo $$ >" + file + ".3; exec sleep 60' & wait";
  CommandRun run(shell(1, script));
  std::vector<pid_t> pids;
  for (auto const* const which : {".1", ".2", ".3"}) pids.push_back(pid_in(file + which));
  ASSERT_THAT(pids, testing::Each(testing::Gt(0)));
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish().signal, SIGKILL);
  for (pid_t const pid : pids) EXPECT_TRUE(gone_within(pid, seconds(10))) << pid;
}

/// Starts a process that leads a group with this number; -1 if the number is not free or may not be chosen.
pid_t start_group(pid_t number) {
  std::ofstream last("/proc/sys/kernel/ns_last_pid");
  last << number - 1 << std::flush;
  pid_t const pid = ::fork();
  if (pid == 0) {
    ::setsid();
    while (true) ::pause();
  }
  if (pid == number) return pid;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return -1;
}

TEST(Run, spares_a_process_with_the_number_of_a_group_that_is_gone) {
  if (::access("/proc/sys/kernel/ns_last_pid", W_OK) != 0) GTEST_SKIP() << "only root may choose process numbers";
  TemporaryDirectory const folder;
  auto const file = (folder.path() / "pid").string();
  // Rank 0 ends before the process that it leaves in its group.
  CommandRun run(shell(2, "echo $$ >" + file + ".$RANK; [ $RANK = 1 ] && exec sleep 60; sleep 0.5 & exit 0"));
  pid_t const group = pid_in(file + ".0");
  ASSERT_GT(pid_in(file + ".1"), 0);
  while (::kill(-group, 0) == 0) std::this_thread::sleep_for(milliseconds(10));
  pid_t other = -1;
  for (int attempt = 0; attempt < 1'000 && other < 0; ++attempt) other = start_group(group);
  if (other < 0) GTEST_SKIP() << "the number was not free";
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish().signal, SIGKILL);
  EXPECT_TRUE(gone_within(pid_in(file + ".1"), seconds(10)));
  std::this_thread::sleep_for(milliseconds(300));  // the guard has seen the end of the launcher
  EXPECT_EQ(::waitpid(other, nullptr, WNOHANG), 0);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

TEST(Run, leaves_no_guard_process) {
  TemporaryDirectory const folder;  // its name is part of the command line, which the guard shares
  // The guard names itself when it begins, which may be after the rank.
  auto const end = run_command(shell(
      1, "until cat /proc/*/comm 2>/dev/null | grep crossrank-guard; do sleep 0.02; done # " + folder.path().string()));
  EXPECT_THAT(end.out, HasSubstr("crossrank-guard"));
  for (auto const& process : std::filesystem::directory_iterator("/proc")) {
    std::ifstream in(process.path() / "cmdline");
    std::string const command{std::istreambuf_iterator<char>(in), {}};
    EXPECT_THAT(command, Not(HasSubstr(folder.path().string()))) << process.path();
  }
}

/// The first process of a container may not reap the orphans that it gets.
TEST(Run, leaves_no_process_to_its_parent) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  auto const end = run_command(shell(2, "true"));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  siginfo_t found{};
  EXPECT_EQ(::waitid(P_ALL, 0, &found, WEXITED | WNOHANG | WNOWAIT), -1) << found.si_pid;
  EXPECT_EQ(errno, ECHILD);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Run, forwards_signals) {
  CommandRun run(shell(2,
                       "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo term; exit 0' TERM; echo ready; while "
                       ":; do sleep 0.02; done"));
  ASSERT_TRUE(run.wait_for("[0] ready") && run.wait_for("[1] ready"));
  run.signal(SIGUSR1);
  EXPECT_TRUE(run.wait_for("[0] usr1") && run.wait_for("[1] usr1"));
  run.signal(SIGUSR2);
  EXPECT_TRUE(run.wait_for("[0] usr2") && run.wait_for("[1] usr2"));
  run.signal(SIGTERM);
  auto const end = run.finish();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("[0] term"));
  EXPECT_THAT(end.out, HasSubstr("[1] term"));
}

TEST(Run, kills_on_the_second_request) {
  CommandRun run(shell(2, "trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done", {"--grace", "60s"}));
  ASSERT_TRUE(run.wait_for("[0] ready") && run.wait_for("[1] ready"));
  run.signal(SIGTERM);
  ASSERT_TRUE(run.wait_for("[0] asked"));
  std::this_thread::sleep_for(milliseconds(400));  // the same signal at once would be the same request
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(seconds(20)).exit_code, 128 + SIGKILL);
}

TEST(Run, takes_the_two_signals_of_timeout_for_one_request) {
  CommandRun run({"run", "-n", "1", "--", "timeout", "2", CROSSRANK_COMMAND, "run", "-n", "1", "--grace", "60s", "--",
                  "/bin/sh", "-c", "trap 'sleep 0.5; echo cleaned; exit 0' TERM; while :; do sleep 0.02; done"});
  auto const end = run.finish();
  EXPECT_THAT(end.out, HasSubstr("cleaned")) << end.err;
}

TEST(Run, stops_and_continues_with_its_ranks) {
  TemporaryDirectory const folder;
  auto const file = (folder.path() / "pid").string();
  CommandRun run(shell(1, "echo $$ >" + file + "; read line; echo $line"));
  pid_t const rank = pid_in(file);
  ASSERT_GT(rank, 0);
  run.signal(SIGTSTP);
  ASSERT_TRUE(run.wait_for_state('T'));
  auto const deadline = Clock::now() + step_timeout;
  while (process_state(rank) != 'T' && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(process_state(rank), 'T');
  run.signal(SIGCONT);
  run.write("awake\n");
  auto const end = run.finish();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.out, "[0] awake\n");
}

TEST(Run, handles_signals_while_nobody_reads_its_output) {
  TemporaryDirectory const folder;
  auto const file = (folder.path() / "pid").string();
  CommandRun run(shell(2, "echo $$ >" + file + "$RANK; exec yes", {"--grace", "400ms"}));
  for (auto const* rank : {"0", "1"}) ASSERT_GT(pid_in(file + rank), 0);
  // Output is blocked when the pipe, the queue and the ranks' own pipes are full; the ranks then sleep in write.
  std::this_thread::sleep_for(milliseconds(200));
  auto const start = Clock::now();
  run.signal(SIGTERM);
  while (process_state(run.pid()) != 'Z' && Clock::now() - start < step_timeout)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(process_state(run.pid()), 'Z');
  EXPECT_EQ(run.finish().exit_code, 128 + SIGTERM);
}

TEST(Run, refuses_a_program_that_it_cannot_run) {
  auto const missing = run_command({"run", "-n", "3", "--", "no-such-program-anywhere"});
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_THAT(missing.err, HasSubstr("no-such-program-anywhere"));
  auto const no_program = run_command({"run", "-n", "3", "--", "/etc/passwd"});
  EXPECT_EQ(no_program.exit_code, 126);
  EXPECT_THAT(no_program.err, HasSubstr("/etc/passwd"));
}

/// A PATH folder that cannot be searched says nothing about the program; as in a shell, it is "not found".
TEST(Run, reports_a_missing_program_when_a_folder_of_path_is_closed) {
  TemporaryDirectory const directory;
  auto const closed = directory.path() / "closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  std::vector<std::string> arguments{"run", "-n", "1", "--", "/usr/bin/env", "PATH=" + closed.string() + ":/usr/bin"};
  if (::geteuid() == 0) {  // root can search every folder unless it drops its capabilities
    arguments.insert(arguments.end(), {"/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all"});
  }
  arguments.insert(arguments.end(), {CROSSRANK_COMMAND, "run", "-n", "1", "--", "no-such-program-anywhere"});
  auto const end = run_command(arguments);
  EXPECT_EQ(end.exit_code, 127) << end.err;
  EXPECT_THAT(end.err, HasSubstr("No such file"));
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
}

TEST(Run, reports_why_output_cannot_be_written) {
  auto const end = run_command({"run", "-n", "1", "--no-prefix", "--", "/bin/sh", "-c",
                                "exec \"$0\" run -n 1 -- echo text > /dev/full", CROSSRANK_COMMAND});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_THAT(end.err, HasSubstr("No space left"));
}

TEST(Run, refuses_an_impossible_number_of_ranks) {
  for (auto const* const ranks : {"0", "-3", "4097", "four"}) {
    auto const end = run_command({"run", "-n", ranks, "--", "true"});
    EXPECT_EQ(end.exit_code, 2) << ranks;
    EXPECT_THAT(end.out + end.err, HasSubstr(ranks));
  }
  EXPECT_EQ(run_command({"run", "--", "true"}).exit_code, 2);
  EXPECT_EQ(run_command({"run", "-n", "2"}).exit_code, 2);
}

TEST(Run, reports_a_limit_of_open_files_that_is_too_low) {
  auto const script = std::string("ulimit -n 100; exec '") + CROSSRANK_COMMAND + "' run -n 60 -- true";
  auto const end = run_command(shell(1, script));
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.err, HasSubstr("ulimit -n"));
}

TEST(Run, can_run_inside_a_rank) {
  auto const script = std::string("exec '") + CROSSRANK_COMMAND + "' run -n 2 -- sh -c 'echo $RANK/$WORLD_SIZE'";
  auto const end = run_command(shell(1, script));
  EXPECT_EQ(line_set(end.out), (std::multiset<std::string>{"[0] [0] 0/2", "[0] [1] 1/2"})) << end.err;
}

TEST(Run, leaves_options_after_the_program_to_the_program) {
  EXPECT_EQ(run_command({"run", "-n", "1", "echo", "-n", "--grace", "x"}).out, "[0] --grace x\n");
  EXPECT_EQ(run_command({"run", "-n", "1", "--", "echo", "a", "--", "-n"}).out, "[0] a -- -n\n");
}

TEST(Run, leaves_brackets_to_the_program) {
  auto const end = run_command({"run", "-n", "1", "--no-prefix", "--", "echo", "[1,2]", "[]", "[[1,2],[3]]", "lr=[1]"});
  EXPECT_EQ(end.out, "[1,2] [] [[1,2],[3]] lr=[1]\n");
  EXPECT_THAT(run_command({"doctor", "[1,2]"}).err, HasSubstr("not expected: [1,2]"));
}

TEST(Run, neither_ends_nor_waits_for_children_that_it_did_not_start) {
  auto const script = std::string("(sleep 100 & echo $! >pid; exec '") + CROSSRANK_COMMAND +
                      "' run -n 1 --grace 100s -- true); kill -0 $(cat pid) && echo alive; kill $(cat pid)";
  TemporaryDirectory const folder;
  auto const end = run_command(shell(1, "cd '" + folder.path().string() + "'; " + script));
  EXPECT_EQ(end.out, "[0] alive\n") << end.err;
}

TEST(Run, ends_at_once_as_the_first_process_of_a_container) {
  std::string const namespaces = "unshare --user --map-root-user --pid --fork --mount-proc ";
  if (run_command(shell(1, namespaces + "true")).exit_code != 0) GTEST_SKIP() << "no namespaces can be made here";
  auto const end = run_command(shell(
      1, namespaces + "'" + CROSSRANK_COMMAND + "' run -n 2 --grace 100s -- sh -c 'sleep 0.1; echo $RANK; exit 3'"));
  EXPECT_EQ(end.exit_code, 3) << end.err;
}

TEST(Command, prints_its_version) { EXPECT_THAT(run_command({"--version"}).out, HasSubstr("crossrank 0.")); }

}  // namespace
