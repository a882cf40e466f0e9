#include "lib/node/rendezvous/frames.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/platform/files/above_standard_streams.hpp"
#include "lib/platform/files/io_error.hpp"
#include "lib/platform/progress_hook.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;

/// Returns the longest next sleep that the wait hook allows.
std::chrono::nanoseconds poll_for_interrupt() {
  auto const longest = platform::ProgressHook::poll();
  if (longest >= std::chrono::nanoseconds::zero()) return longest;
  throw CancelledError({.operation = "connect", .message = "the wait was interrupted", .group_usable = false});
}

int milliseconds_until(std::chrono::nanoseconds until) {
  auto const left = std::min(until - system().now(), poll_for_interrupt());
  return static_cast<int>(
      std::clamp<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 0, 1000));
}

/// Returns true when the socket is ready for `events` or has failed; false at the deadline.
bool wait_for(int socket, short events, std::chrono::nanoseconds until) {
  for (;;) {
    pollfd entry{socket, events, 0};
    int const ready = system().poll(&entry, 1, milliseconds_until(until));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) platform::throw_io("rendezvous", "poll", errno);
    if (system().now() >= until) return false;
  }
}

void take_fds(msghdr& message, std::vector<Fd>& fds) {
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    auto const count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      fds.emplace_back(platform::above_standard_streams(fd));
    }
  }
}

struct alignas(cmsghdr) ControlBuffer {
  std::array<char, CMSG_SPACE(fds_per_frame * sizeof(int))> bytes{};
};

}  // namespace

void pause_start(std::chrono::nanoseconds longest) { system().sleep(std::min(longest, poll_for_interrupt())); }

bool send_frame(int socket, Frame const& frame, std::span<int const> fds, std::chrono::nanoseconds until) {
  ControlBuffer control;
  std::size_t sent = 0;
  while (sent < sizeof frame) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): an iovec of what is sent is only read
    iovec part{const_cast<char*>(reinterpret_cast<char const*>(&frame)) + sent, sizeof frame - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent == 0 && !fds.empty()) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      auto* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::ranges::copy(std::as_bytes(fds), reinterpret_cast<std::byte*>(CMSG_DATA(header)));
    }
    auto const bytes = system().sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes > 0) {
      sent += as_size(bytes);
    } else if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(socket, POLLOUT, until)) return false;
    } else if (bytes < 0 && errno == ETOOMANYREFS) {
      // Too many descriptors of this user are in flight: other ranks have yet to receive theirs.
      if (system().now() >= until) platform::throw_io("rendezvous", "sendmsg", errno, "raise ulimit -n");
      pause_start(std::chrono::milliseconds(1));
    } else if (bytes < 0 && errno != EINTR) {
      if (errno == EPIPE || errno == ECONNRESET) return false;
      platform::throw_io("rendezvous", "sendmsg", errno);
    }
  }
  return true;
}

Received receive_part(int socket, PartialFrame& part, std::vector<Fd>& fds) {
  auto& frame = part.frame;
  while (part.got < sizeof frame) {
    ControlBuffer control;
    iovec rest{reinterpret_cast<char*>(&frame) + part.got, sizeof frame - part.got};
    msghdr message{};
    message.msg_iov = &rest;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    auto const bytes = system().recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (bytes == 0) return Received::closed;
    if (bytes < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::partial;
      if (errno == ECONNRESET) return Received::closed;
      platform::throw_io("rendezvous", "recvmsg", errno);
    }
    take_fds(message, fds);
    if ((message.msg_flags & MSG_CTRUNC) != 0)
      platform::throw_io("rendezvous", "SCM_RIGHTS", EMFILE, "raise the limit of open files (ulimit -n)");
    part.got += as_size(bytes);
  }
  frame.text.back() = '\0';
  frame.key.back() = '\0';
  return frame.magic == Frame{}.magic ? Received::frame : Received::closed;
}

Received receive_frame(int socket, Frame& frame, std::vector<Fd>& fds, std::chrono::nanoseconds until) {
  PartialFrame part;
  for (;;) {
    if (!wait_for(socket, POLLIN, until)) return Received::timed_out;
    auto const received = receive_part(socket, part, fds);
    if (received == Received::partial) continue;
    frame = part.frame;
    return received;
  }
}

void wait_for_events(std::span<pollfd> set, std::chrono::nanoseconds until) {
  if (system().poll(set.data(), set.size(), milliseconds_until(until)) < 0 && errno != EINTR)
    platform::throw_io("rendezvous", "poll", errno);
}

}  // namespace crossrank::node
