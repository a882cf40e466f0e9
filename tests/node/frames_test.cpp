#include "lib/node/rendezvous/frames.hpp"

#include <array>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/platform/system.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;

std::chrono::nanoseconds soon(int ms = 5000) { return platform::system().now() + std::chrono::milliseconds(ms); }

struct Frames : testing::Test {
  Frames() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error("socketpair");
    here = Fd(ends[0]);
    there = Fd(ends[1]);
  }
  Received receive(int ms = 5000) { return receive_frame(here.get(), frame, fds, soon(ms)); }
  void write_raw(Frame const& what, std::size_t begin, std::size_t end) const {
    ASSERT_EQ(::write(there.get(), reinterpret_cast<char const*>(&what) + begin, end - begin),
              static_cast<ssize_t>(end - begin));
  }
  Fd here;
  Fd there;
  Frame frame;
  std::vector<Fd> fds;
};

TEST_F(Frames, carry_data_and_descriptors) {
  Frame sent;
  sent.kind = Frame::Kind::memory;
  sent.rank = 7;
  put_text(sent.text, "hello");
  std::vector<int> const files{there.get(), here.get()};
  ASSERT_TRUE(send_frame(there.get(), sent, files, soon()));
  ASSERT_EQ(receive(), Received::frame);
  EXPECT_EQ(frame.kind, Frame::Kind::memory);
  EXPECT_EQ(frame.rank, 7);
  EXPECT_STREQ(frame.text.data(), "hello");
  ASSERT_EQ(fds.size(), 2U);
  EXPECT_NE(::fcntl(fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(Frames, are_assembled_from_short_reads) {
  Frame sent;
  sent.rank = 3;
  std::thread writer([&] {
    for (std::size_t at = 0; at < sizeof sent; at += 100) write_raw(sent, at, std::min(at + 100, sizeof sent));
  });
  EXPECT_EQ(receive(), Received::frame);
  EXPECT_EQ(frame.rank, 3);
  writer.join();
}

TEST_F(Frames, are_closed_when_truncated) {
  write_raw({}, 0, 200);
  there = Fd();
  EXPECT_EQ(receive(), Received::closed);
}

TEST_F(Frames, time_out_when_the_sender_stops_half_way) {
  write_raw({}, 0, 200);
  EXPECT_EQ(receive(30), Received::timed_out);
}

TEST_F(Frames, are_refused_with_a_wrong_magic) {
  Frame sent;
  sent.magic ^= 1;
  write_raw(sent, 0, sizeof sent);
  EXPECT_EQ(receive(), Received::closed);
}

TEST_F(Frames, terminate_their_texts_whatever_was_sent) {
  Frame sent;
  sent.text.fill('x');
  sent.key.fill('y');
  write_raw(sent, 0, sizeof sent);
  ASSERT_EQ(receive(), Received::frame);
  EXPECT_EQ(std::string(frame.text.data()).size(), frame.text.size() - 1);
  EXPECT_EQ(std::string(frame.key.data()).size(), frame.key.size() - 1);
}

TEST_F(Frames, cannot_be_sent_to_a_closed_peer) {
  here = Fd();
  EXPECT_FALSE(send_frame(there.get(), {}, {}, soon()));
}

TEST_F(Frames, time_out_when_the_buffer_is_full) {
  bool sent = true;
  for (int i = 0; sent && i < 100'000; ++i) sent = send_frame(there.get(), {}, {}, soon(20));
  EXPECT_FALSE(sent);
}

}  // namespace
}  // namespace crossrank::node
