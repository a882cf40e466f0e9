#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/spi/add_node_memory.hpp>
#include <crossrank/spi/network.hpp>
#include <crossrank/spi/transport.hpp>

#include "tests/support/memory_packet_transport.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

struct MessageRankOptions {
  std::chrono::milliseconds timeout = step_timeout;  ///< limit of every wait of the ranks
  bool node_memory = false;                          ///< whether the ranks of a host share memory
  int ranks_per_host = 0;                            ///< consecutive ranks; 0: even ranks on one host, odd on another
  std::uint64_t arena_cap = std::uint64_t{64} << 20;
};

using MessageBody = std::function<void(Collective const& world, MemoryHub& hub)>;

/// Returns the transport of `rank` in the group of all ranks.
[[nodiscard]] inline std::shared_ptr<spi::Transport> message_transport(std::shared_ptr<MemoryHub> const& hub, int rank,
                                                                       MessageRankOptions const& options) {
  auto const network = spi::make_network(std::make_unique<MemoryPacketTransport>(hub, rank));
  spi::TimeoutPolicy const timeout_policy{.timeout = options.timeout};
  auto const host = "host" + std::to_string(options.ranks_per_host == 0 ? rank % 2 : rank / options.ranks_per_host);
  auto transport =
      network->open_world({.job = "test", .timeout_policy = timeout_policy, .host_id = host, .host_name = host});
  if (options.node_memory) {
    transport = spi::add_node_memory(std::move(transport), {.timeout_policy = timeout_policy,
                                                            .connect_timeout = step_timeout,
                                                            .arena_cap = options.arena_cap,
                                                            .threads = true,
                                                            .job = "test of rank " + std::to_string(rank)});
  }
  return transport;
}

/// Returns the handle of `rank` to the group of all ranks, on the same hosts.
[[nodiscard]] inline Collective join_by_messages(std::shared_ptr<MemoryHub> const& hub, int rank,
                                                 MessageRankOptions const& options) {
  return make_collective(message_transport(hub, rank, options), {.timeout = options.timeout});
}

/// Runs `body` on ranks that are threads and exchange packets.
inline void run_message_ranks(int count, MessageBody const& body, MessageRankOptions const& options = {}) {
  auto const hub = std::make_shared<MemoryHub>(count);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back([=, &body] { body(join_by_messages(hub, rank, options), *hub); });
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

}  // namespace crossrank::test
