#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <sys/socket.h>

#include "lib/node/attachment.hpp"
#include "lib/node/frames.hpp"

namespace crossrank::node {

/// The side of the rank that listens. `until` is a time of the seam's clock.
[[nodiscard]] std::unique_ptr<Rendezvous> host_side(NodeOptions options, platform::Fd listener,
                                                    std::chrono::nanoseconds until);
/// The side of a rank that has connected to the host, whose process id it knows.
[[nodiscard]] std::unique_ptr<Rendezvous> guest_side(NodeOptions options, platform::Fd socket, std::int64_t host_pid,
                                                     std::chrono::nanoseconds until);

// What both sides need.
/// Who is at the other end, as the kernel says.
[[nodiscard]] ucred peer_of(int socket);
/// A frame with this rank's part filled in.
[[nodiscard]] Frame make_frame(NodeOptions const& options, Frame::Kind kind);
/// Maps the control segment and all arenas, after checking that each is what it must be.
[[nodiscard]] Attachment map_memory(NodeOptions const& options, platform::Fd control_fd, platform::Fd own_arena,
                                    std::vector<platform::Fd> arenas, std::uint64_t arena_bytes);
/// The header of the control segment; keeps it mapped.
[[nodiscard]] std::shared_ptr<ControlHeader> header_of(Attachment const& memory);

}  // namespace crossrank::node
