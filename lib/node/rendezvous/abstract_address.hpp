#pragma once
#include <string>

#include <sys/socket.h>
#include <sys/un.h>

#include "lib/platform/fd.hpp"

namespace crossrank::node {

/// An address of a UNIX socket that is no file: its name goes with the last socket that is bound to it.
struct AbstractAddress {
  sockaddr_un name{};
  socklen_t bytes = 0;

  [[nodiscard]] sockaddr const* address() const noexcept { return reinterpret_cast<sockaddr const*>(&name); }
};

/// "crossrank-<uid>-<text>"; `text` has at most 64 characters.
[[nodiscard]] AbstractAddress abstract_address(std::string const& text);

/// A stream socket that never blocks: connecting to a full backlog would otherwise wait without a limit.
[[nodiscard]] platform::Fd open_socket();

/// Who is at the other end, as the kernel says.
[[nodiscard]] ucred peer_of(int socket);

}  // namespace crossrank::node
