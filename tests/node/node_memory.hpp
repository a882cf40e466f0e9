#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/node/memory/arena.hpp"
#include "lib/node/rendezvous/rendezvous.hpp"

namespace crossrank::test {

/// The control segment and the arenas of a node without ranks, to test one part alone.
struct NodeMemory {
  explicit NodeMemory(int count, std::uint64_t cap, std::uint64_t arena_bytes = std::uint64_t{16} << 20)
      : ranks(count) {
    node::NodeOptions options;
    options.ranks = count;
    control_fd =
        std::make_shared<platform::Fd>(node::make_control(options, {.cap_bytes = cap, .arena_bytes = arena_bytes}));
    control = std::make_shared<node::Mapping>(*control_fd, node::ControlGeometry(count).total_bytes(),
                                              node::Mapping::Access::read_write, "control segment");
    for (int rank = 0; rank < count; ++rank)
      record(rank).state = static_cast<std::uint32_t>(node::AttachState::attached);
  }
  [[nodiscard]] std::unique_ptr<node::Arena> arena(int rank) const {
    auto const what = "arena of rank " + std::to_string(rank);
    auto fd = std::make_shared<platform::Fd>(node::make_shared_memory(what, header().arena_bytes));
    auto memory = std::make_shared<node::Mapping>(*fd, header().arena_bytes, node::Mapping::Access::read_write, what);
    return std::make_unique<node::Arena>(node::ArenaMemory{.mapping = std::move(memory),
                                                           .fd = std::move(fd),
                                                           .control_fd = control_fd,
                                                           .control = control,
                                                           .rank = rank,
                                                           .ranks = ranks});
  }
  [[nodiscard]] node::LeaseTable leases() const { return {control->data(), ranks}; }
  [[nodiscard]] node::ControlHeader& header() const { return *reinterpret_cast<node::ControlHeader*>(control->data()); }
  [[nodiscard]] node::RankRecord& record(int rank) const {
    return reinterpret_cast<node::RankRecord*>(control->data() + node::ControlGeometry(ranks).records_offset())[rank];
  }

  int ranks;
  std::shared_ptr<platform::Fd> control_fd;
  std::shared_ptr<node::Mapping> control;
};

}  // namespace crossrank::test
