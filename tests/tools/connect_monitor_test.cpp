#include "tools/launch/connect_monitor.hpp"

#include <chrono>
#include <string>

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
    LauncherMessage const came{.kind = LauncherMessage::Kind::came, .rank = 1};
    ASSERT_EQ(::send(server.get(), &came, sizeof came, 0), static_cast<ssize_t>(sizeof came));
  }
  monitor.notify_exit(0, 1234, 0, std::chrono::milliseconds(1));
  monitor.serve();
  EXPECT_TRUE(monitor.ended_before_connect(0));
  EXPECT_FALSE(monitor.ended_before_connect(1));
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
