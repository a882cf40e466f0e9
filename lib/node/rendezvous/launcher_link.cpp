#include "lib/node/rendezvous/launcher_link.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/node/memory/segment_names.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

using platform::Fd;
using platform::system;

AbstractAddress launcher_address(std::string const& job_id) {
  return abstract_address(JobKey{.job_id = job_id, .master = "launcher", .step = {}}.digest());
}

std::string describe_status(int status) {
  if (WIFEXITED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  int const number = WTERMSIG(status);
  auto const* const name = ::sigabbrev_np(number);
  std::string text = "signal " + std::to_string(number);
  if (name != nullptr) text += std::string(" (SIG") + name + ")";
  if (WCOREDUMP(status)) text += ", core dumped";
  return text;
}

LauncherLink::LauncherLink(std::string const& job_id) noexcept {
  try {
    auto const address = launcher_address(job_id);
    Fd socket = open_socket();
    if (system().connect(socket.get(), address.address(), address.bytes) != 0) return;
    if (peer_of(socket.get()).uid != ::geteuid()) return;
    fd_ = std::move(socket);
    tell(LauncherMessage::Kind::serving);
  } catch (Error const&) {  // no socket to spare: the ranks that end are then found by the deadline
  }
}

void LauncherLink::take(std::function<void(LauncherMessage const&)> const& on_end) {
  while (fd_) {
    iovec rest{reinterpret_cast<char*>(&part_) + got_, sizeof part_ - got_};
    msghdr message{};
    message.msg_iov = &rest;
    message.msg_iovlen = 1;
    auto const bytes = system().recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (bytes <= 0) {
      fd_ = Fd();
      return;
    }
    got_ += as_size(bytes);
    if (got_ < sizeof part_) continue;
    got_ = 0;
    if (part_.magic != LauncherMessage{}.magic) {
      fd_ = Fd();
      return;
    }
    if (part_.kind == LauncherMessage::Kind::ended) on_end(part_);
  }
}

void LauncherLink::tell(LauncherMessage::Kind kind, int rank) noexcept { send({.kind = kind, .rank = rank}, -1); }

void LauncherLink::tell_joined(int control) noexcept { send({.kind = LauncherMessage::Kind::joined}, control); }

void LauncherLink::send(LauncherMessage const& what, int fd) noexcept {
  if (!fd_) return;
  auto copy = what;
  iovec part{&copy, sizeof copy};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  // A stopped launcher may leave its buffer full. The messages that it misses are missing only in its summary.
  if (system().sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof copy))
    fd_ = Fd();
}

}  // namespace crossrank::node
