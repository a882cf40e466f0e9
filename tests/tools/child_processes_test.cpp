// Processes end while they are looked at.
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

/// Starts processes that end at once, one after the other.
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

TEST(ChildProcesses, an_unreadable_file_gives_an_empty_text) {
  EXPECT_EQ(process_text("/proc"), "");  // as the file of a process that ends in between
}

TEST(ChildProcesses, the_text_of_an_ended_process_is_empty) {
  pid_t const ended = ::fork();
  if (ended == 0) ::_exit(0);
  auto const status = "/proc/" + std::to_string(ended) + "/stat";
  ::waitpid(ended, nullptr, 0);
  EXPECT_EQ(process_text(status), "");
}

}  // namespace
}  // namespace crossrank::tools
