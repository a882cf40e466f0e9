#include "lib/node/rendezvous/roles.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <unistd.h>

#include "lib/core/at_rank.hpp"

namespace crossrank::node {

Attachment map_memory(NodeOptions const& options, platform::Fd control_fd, platform::Fd own_arena,
                      std::vector<platform::Fd> arenas, std::uint64_t arena_bytes) {
  Attachment out;
  ControlGeometry const geometry(options.ranks);
  out.control =
      std::make_shared<Mapping>(control_fd, geometry.total_bytes(), Mapping::Access::read_write, "control segment");
  out.control_fd = std::make_shared<platform::Fd>(std::move(control_fd));
  for (int rank = 0; rank < options.ranks; ++rank) {
    auto const what = "arena of rank " + std::to_string(rank);
    bool const own = rank == options.rank;
    auto fd = std::make_shared<platform::Fd>(std::move(own ? own_arena : at_rank(arenas, rank)));
    if (!own) check_shared_memory(*fd, arena_bytes, what);
    auto const access = own ? Mapping::Access::read_write : Mapping::Access::read_only;
    out.arenas.push_back(std::make_shared<Mapping>(*fd, arena_bytes, access, what));
    out.arena_fds.push_back(std::move(fd));
  }
  return out;
}

std::shared_ptr<ControlHeader> header_of(Attachment const& memory) {
  return {memory.control, reinterpret_cast<ControlHeader*>(memory.control->data())};
}

std::chrono::nanoseconds client_grace(std::chrono::nanoseconds timeout) {
  return std::clamp<std::chrono::nanoseconds>(timeout / 10, std::chrono::milliseconds(200), std::chrono::seconds(5));
}

Frame make_frame(NodeOptions const& options, Frame::Kind kind) {
  Frame frame;
  frame.layout = layout_version;
  frame.kind = kind;
  frame.rank = options.rank;
  frame.ranks = options.ranks;
  frame.pid = ::getpid();
  return frame;
}

}  // namespace crossrank::node
