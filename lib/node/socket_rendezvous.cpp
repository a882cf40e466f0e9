#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include <sys/un.h>
#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/node/rendezvous_sides.hpp"
#include "lib/platform/crash_point.hpp"
#include "lib/platform/io_error.hpp"

/// The ranks of a job on one node meet at an abstract socket. Whoever binds it first is the host: it waits until all
/// have said hello, makes the control segment, collects one arena from each, hands everything to one rank at a time in
/// acknowledged batches, and says go once all have their life tokens in place. Then every socket is closed.
namespace crossrank::node {
namespace {

using platform::Fd;
using platform::system;

constexpr auto retry_pause = std::chrono::milliseconds(2);

/// The host's deadline comes first, as it knows who is missing: guests wait for its word a little longer.
std::chrono::nanoseconds guest_grace(std::chrono::nanoseconds timeout) {
  return std::clamp<std::chrono::nanoseconds>(timeout / 10, std::chrono::milliseconds(200), std::chrono::seconds(5));
}

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address abstract_address(std::string const& digest) {
  Address address;
  auto const text = "crossrank-" + std::to_string(::geteuid()) + "-" + digest;
  address.name.sun_family = AF_UNIX;
  text.copy(address.name.sun_path + 1, text.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Fd open_socket() {
  // Not blocking: connecting to a full backlog would otherwise wait without a limit.
  Fd fd(system().socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) platform::throw_io("rendezvous", "socket", errno);
  return fd;
}

[[noreturn]] void fail_squatter(NodeOptions const& options, ucred const& peer) {
  throw UnavailableError({.operation = "connect",
                          .message = "another user holds the name where the ranks of this job meet",
                          .expected = "uid " + std::to_string(::geteuid()),
                          .got = "uid " + std::to_string(peer.uid) + ", pid " + std::to_string(peer.pid),
                          .resource = options.key.text(),
                          .remedy = "start with a job id that nobody can guess, as `crossrank run` does",
                          .rank = options.rank,
                          .world_size = options.ranks,
                          .group_usable = false});
}

/// Takes the name and listens, or none where somebody else has it.
Fd try_host(Address const& address) {
  auto socket = open_socket();
  if (system().bind(socket.get(), reinterpret_cast<sockaddr const*>(&address.name), address.bytes) != 0) {
    if (errno == EADDRINUSE) return Fd();
    platform::throw_io("rendezvous", "bind", errno);
  }
  CROSSRANK_CRASH_POINT("node.rendezvous.bound");
  if (system().listen(socket.get(), SOMAXCONN) != 0) platform::throw_io("rendezvous", "listen", errno);
  return socket;
}

/// A connection to the host, or none while there is none.
Fd try_guest(Address const& address) {
  auto socket = open_socket();
  if (system().connect(socket.get(), reinterpret_cast<sockaddr const*>(&address.name), address.bytes) == 0)
    return socket;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR || errno == ECONNRESET) return Fd();
  platform::throw_io("rendezvous", "connect", errno);
}

bool sockets_refused() {
  Fd const probe(system().socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return !probe && (errno == EPERM || errno == EACCES || errno == EAFNOSUPPORT || errno == ENOSYS);
}

}  // namespace

std::unique_ptr<Rendezvous> socket_rendezvous(NodeOptions const& options) {
  if (sockets_refused()) return nullptr;
  auto const address = abstract_address(options.key.digest());
  auto const until = system().now() + options.timeout;
  for (;;) {
    if (auto socket = try_guest(address)) {
      auto const peer = peer_of(socket.get());
      if (peer.uid != ::geteuid()) fail_squatter(options, peer);
      return guest_side(options, std::move(socket), peer.pid, until + guest_grace(options.timeout));
    }
    if (auto listener = try_host(address)) return host_side(options, std::move(listener), until);
    if (system().now() >= until) {
      throw TimeoutError({.operation = "connect",
                          .message = "the name where the ranks of this job meet is taken, but nobody answers there",
                          .resource = options.key.text(),
                          .remedy = "start with another job id",
                          .rank = options.rank,
                          .world_size = options.ranks,
                          .group_usable = false});
    }
    system().sleep(retry_pause);
  }
}

}  // namespace crossrank::node
