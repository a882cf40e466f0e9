#pragma once
#include <string>

#include <sys/socket.h>
#include <sys/un.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::node {

/// The address of a UNIX socket without a file. The name disappears with the last socket that is bound to it.
struct AbstractAddress {
  sockaddr_un name{};
  socklen_t bytes = 0;

  [[nodiscard]] sockaddr const* address() const noexcept { return reinterpret_cast<sockaddr const*>(&name); }
};

/// Returns "crossrank-<uid>-<text>"; `text` has at most 64 characters.
[[nodiscard]] AbstractAddress abstract_address(std::string const& text);

/// Makes a non-blocking stream socket: connecting to a full backlog would otherwise wait without limit.
[[nodiscard]] platform::Fd open_socket();

/// Returns the credentials of the peer from the kernel.
[[nodiscard]] ucred peer_of(int socket);

}  // namespace crossrank::node
