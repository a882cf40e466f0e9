// Processes may end while they are examined.
#include "tools/launch/child_processes.hpp"

#include <csignal>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace crossrank::tools {
namespace {

/// Starts short-lived processes, one after the other.
[[noreturn]] void keep_starting() {
  for (;;) {
    pid_t const short_lived = ::fork();
    if (short_lived == 0) ::_exit(0);
    if (short_lived > 0) ::waitpid(short_lived, nullptr, 0);
  }
}

TEST(ChildProcesses, are_found_while_processes_come_and_go) {
  pid_t const starter = ::fork();
  if (starter == 0) keep_starting();
  ASSERT_GT(starter, 0);
  for (int i = 0; i < 300; ++i) {
    std::vector<pid_t> children;
    ASSERT_NO_THROW(children = child_processes());
    ASSERT_THAT(children, testing::Contains(starter));
  }
  ::kill(starter, SIGKILL);
  ::waitpid(starter, nullptr, 0);
}

TEST(ChildProcesses, return_an_empty_text_for_an_unreadable_file) {
  EXPECT_EQ(process_text("/proc"), "");  // fails like the file of a process that has ended
}

TEST(ChildProcesses, return_an_empty_text_for_an_ended_process) {
  pid_t const ended = ::fork();
  if (ended == 0) ::_exit(0);
  auto const status = "/proc/" + std::to_string(ended) + "/stat";
  ::waitpid(ended, nullptr, 0);
  EXPECT_EQ(process_text(status), "");
}

}  // namespace
}  // namespace crossrank::tools
