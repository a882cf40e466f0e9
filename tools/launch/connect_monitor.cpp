#include "tools/launch/connect_monitor.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "lib/node/liveness/root_cause.hpp"
#include "lib/node/memory/control_layout.hpp"

namespace crossrank::tools {
namespace {

using node::LauncherMessage;
using platform::Fd;
using Kind = LauncherMessage::Kind;

/// Ranks usually have one rendezvous at a time, or a few.
constexpr std::size_t max_rendezvous = 64;
constexpr std::size_t max_segments = 8;

bool send(Fd const& to, LauncherMessage const& message) {
  return ::send(to.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

/// Reads a struct of a segment by a system call. A mapping would end this process with SIGBUS if another one truncated
/// the segment. Returns whether all bytes are there.
template <class Struct>
bool read_at(Fd const& segment, std::uint64_t offset, Struct& into) {
  return ::pread(segment.get(), static_cast<void*>(&into), sizeof into, static_cast<off_t>(offset)) ==
         static_cast<ssize_t>(sizeof into);
}

}  // namespace

ConnectMonitor::ConnectMonitor(std::string const& job_id, int ranks) : ranks_(ranks) {
  auto const address = node::launcher_address(job_id);
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), address.address(), address.bytes) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
    return;
  listener_ = std::move(socket);
}

void ConnectMonitor::add_to(std::vector<pollfd>& set) const {
  if (listener_) set.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  for (auto const& one : rendezvous_) {
    auto const events = static_cast<short>(one.told < ended_.size() ? POLLIN | POLLOUT : POLLIN);
    if (one.server) set.push_back({.fd = one.server.get(), .events = events, .revents = 0});
  }
}

void ConnectMonitor::serve() {
  while (listener_) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    ucred peer{};
    socklen_t bytes = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != ::geteuid()) continue;
    if (rendezvous_.size() >= max_rendezvous) continue;
    rendezvous_.push_back({.server = std::move(socket)});
  }
  for (auto& one : rendezvous_) {
    tell_ends(one);
    read_message(one);
  }
  forget_old();
}

void ConnectMonitor::forget_old() {
  std::erase_if(rendezvous_, [](Rendezvous const& one) { return !one.server && one.joined; });
  auto const is_over = [](Rendezvous const& one) { return !one.server; };
  while (std::count_if(rendezvous_.begin(), rendezvous_.end(), is_over) > 1) {
    auto const first = std::find_if(rendezvous_.begin(), rendezvous_.end(), is_over);
    if (!first->failed) std::next(first)->arrived.merge(first->arrived);
    rendezvous_.erase(first);
  }
}

/// A server that has ended hears nothing more, but what it has sent before is still read.
void ConnectMonitor::tell_ends(Rendezvous& to) const {
  while (to.server && to.told < ended_.size()) {
    if (!send(to.server, ended_[to.told]) && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    ++to.told;
  }
}

void ConnectMonitor::read_message(Rendezvous& from) {
  while (from.server) {
    iovec rest{reinterpret_cast<char*>(&from.part) + from.got, sizeof from.part - from.got};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &rest;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    auto const bytes = ::recvmsg(from.server.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    for (auto* part = CMSG_FIRSTHDR(&header); bytes > 0 && part != nullptr; part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS || part->cmsg_len != CMSG_LEN(sizeof(int)))
        continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
      from.fds.emplace_back(fd);
    }
    if (bytes > 0) from.got += as_size(bytes);
    bool const whole = from.got == sizeof from.part;
    if (bytes <= 0 || (whole && from.part.magic != LauncherMessage{}.magic)) {
      from.server = Fd();
    } else if (whole) {
      from.got = 0;
      take(from, from.part);
    }
  }
}

void ConnectMonitor::take(Rendezvous& from, LauncherMessage const& message) {
  if (message.kind == Kind::arrived && message.rank >= 0 && message.rank < ranks_) from.arrived.insert(message.rank);
  if (message.kind == Kind::failed) from.failed = true;
  if (message.kind != Kind::joined) return;
  from.joined = joined_ = true;
  if (!from.fds.empty()) keep_segment(std::move(from.fds.front()));
  from.fds.clear();
}

void ConnectMonitor::keep_segment(Fd control) {
  auto const header = std::make_unique<node::ControlHeader>();
  if (!read_at(control, 0, *header) || header->magic != node::control_magic ||
      header->version != node::layout_version || header->ranks != static_cast<std::uint32_t>(ranks_))
    return;
  segments_.push_back(std::move(control));
  if (segments_.size() > max_segments) segments_.erase(segments_.begin());
}

void ConnectMonitor::notify_exit(int rank, pid_t pid, int status, std::chrono::milliseconds after) {
  ended_.push_back({.kind = Kind::ended, .rank = rank, .status = status, .pid = pid, .after_ms = after.count()});
  for (auto& one : rendezvous_) tell_ends(one);
}

bool ConnectMonitor::ended_before_connect(int rank) const {
  return !rendezvous_.empty() && !joined_ &&
         std::none_of(rendezvous_.begin(), rendezvous_.end(),
                      [rank](Rendezvous const& one) { return one.arrived.contains(rank); });
}

std::optional<int> ConnectMonitor::cause_of(int rank) const {
  return find_in_records(rank, [](node::RankRecord const& record) {
    auto const cause = node::read_cause(record.cause);
    return cause ? cause->global_rank : -1;
  });
}

std::optional<int> ConnectMonitor::thrower_of(int rank) const {
  return find_in_records(rank, [](node::RankRecord const& record) {
    return static_cast<int>(record.peer_error.load(std::memory_order_relaxed)) - 1;
  });
}

std::optional<int> ConnectMonitor::find_in_records(int rank, int (*blamed)(node::RankRecord const&)) const {
  auto const offset = node::ControlGeometry(ranks_).records_offset() + as_size(rank) * sizeof(node::RankRecord);
  auto const record = std::make_unique<node::RankRecord>();
  for (auto at = segments_.rbegin(); at != segments_.rend(); ++at) {
    if (!read_at(*at, offset, *record)) continue;
    int const other = blamed(*record);
    if (other >= 0 && other < ranks_ && other != rank) return other;
  }
  return std::nullopt;
}

}  // namespace crossrank::tools
