#include "lib/node/rendezvous/abstract_address.hpp"

#include <cerrno>
#include <cstddef>

#include <unistd.h>

#include "lib/platform/files/io_error.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::node {

using platform::system;

AbstractAddress abstract_address(std::string const& text) {
  AbstractAddress address;
  auto const whole = "crossrank-" + std::to_string(::geteuid()) + "-" + text;
  address.name.sun_family = AF_UNIX;
  auto const length = whole.copy(address.name.sun_path + 1, sizeof address.name.sun_path - 1);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

platform::Fd open_socket() {
  platform::Fd fd(system().socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    platform::throw_io({.operation = "connect",
                        .message = "cannot open a socket",
                        .resource = "rendezvous",
                        .hint = "raise the limit of open files (ulimit -n)",
                        .group_usable = false},
                       errno);
  }
  return fd;
}

ucred peer_of(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (system().getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    platform::throw_io("rendezvous", "SO_PEERCRED", errno);
  return peer;
}

}  // namespace crossrank::node
