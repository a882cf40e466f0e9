#include "tools/launch/connect_monitor.hpp"

#include <chrono>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lib/node/rendezvous/launcher_link.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::tools {
namespace {

using node::LauncherMessage;

/// The server of a rendezvous sends a message and ends. The launcher sees that only after it has the end of a rank to
/// tell.
TEST(ConnectMonitor, reads_what_a_server_said_before_it_ended) {
  auto const job = "connect_monitor_test_" + std::to_string(::getpid());
  ConnectMonitor monitor(job, 2);
  auto const address = node::launcher_address(job);
  {
    platform::Fd const server(platform::system().socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(platform::system().connect(server.get(), address.address(), address.bytes), 0);
    LauncherMessage const arrived{.kind = LauncherMessage::Kind::arrived, .rank = 1};
    ASSERT_EQ(::send(server.get(), &arrived, sizeof arrived, 0), static_cast<ssize_t>(sizeof arrived));
  }
  monitor.notify_exit(0, 1234, 0, std::chrono::milliseconds(1));
  monitor.serve();
  EXPECT_TRUE(monitor.ended_before_connect(0));
  EXPECT_FALSE(monitor.ended_before_connect(1));
}

/// The ranks 0 and 1 came to a server that ended. Rank 0 then served, and failed.
struct SecondServer : testing::Test {
  void serve(std::vector<LauncherMessage> const& messages) {
    auto const address = node::launcher_address(job);
    {
      platform::Fd const server(platform::system().socket(AF_UNIX, SOCK_STREAM, 0));
      ASSERT_EQ(platform::system().connect(server.get(), address.address(), address.bytes), 0);
      for (auto const& message : messages)
        ASSERT_EQ(::send(server.get(), &message, sizeof message, 0), static_cast<ssize_t>(sizeof message));
    }
    monitor.serve();
  }
  static LauncherMessage arrived(int rank) { return {.kind = LauncherMessage::Kind::arrived, .rank = rank}; }
  static LauncherMessage failed() { return {.kind = LauncherMessage::Kind::failed}; }

  std::string job = "connect_monitor_test_" + std::to_string(::getpid());
  ConnectMonitor monitor{job, 3};
};

TEST_F(SecondServer, serves_the_same_start_when_the_first_has_died) {
  serve({arrived(1), arrived(0)});
  serve({arrived(0), failed()});
  EXPECT_FALSE(monitor.ended_before_connect(0));
  EXPECT_FALSE(monitor.ended_before_connect(1));
  EXPECT_TRUE(monitor.ended_before_connect(2));
}

TEST_F(SecondServer, serves_another_start_when_the_first_has_failed) {
  serve({arrived(1), arrived(0), failed()});
  serve({arrived(0), failed()});
  EXPECT_FALSE(monitor.ended_before_connect(0));
  EXPECT_TRUE(monitor.ended_before_connect(1));
}

/// More ends than a socket holds at once.
TEST(ConnectMonitor, tells_a_late_server_all_ends) {
  constexpr int ranks = 4000;
  auto const job = "connect_monitor_test_" + std::to_string(::getpid());
  ConnectMonitor monitor(job, ranks);
  for (int rank = 1; rank < ranks; ++rank) monitor.notify_exit(rank, 1234, 0, std::chrono::milliseconds(1));
  auto const address = node::launcher_address(job);
  platform::Fd const server(platform::system().socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(platform::system().connect(server.get(), address.address(), address.bytes), 0);
  for (int rank = 1; rank < ranks; ++rank) {
    monitor.serve();
    LauncherMessage end;
    ASSERT_EQ(::recv(server.get(), &end, sizeof end, MSG_DONTWAIT), static_cast<ssize_t>(sizeof end)) << rank;
    ASSERT_EQ(end.rank, rank);
  }
}

}  // namespace
}  // namespace crossrank::tools
