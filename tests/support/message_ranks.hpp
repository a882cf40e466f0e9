#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/spi/wire.hpp>

#include "tests/support/memory_wire.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

struct MessageRankOptions {
  std::chrono::milliseconds timeout{20'000};  ///< of every wait of the ranks
  bool node_memory = false;                   ///< shared memory inside each host
};

using MessageBody = std::function<void(Collective const& world, MemoryHub& hub)>;

/// Runs `body` on ranks that are threads, with packets between them. Even ranks are on host0, odd ones on host1.
inline void run_message_ranks(int count, MessageBody const& body, MessageRankOptions const& options = {}) {
  auto const hub = std::make_shared<MemoryHub>(count);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.emplace_back([=, &body] {
      auto const network = spi::make_network(std::make_unique<MemoryWire>(hub, rank));
      spi::Patience const patience{.timeout = options.timeout};
      auto const host = "host" + std::to_string(rank % 2);
      auto transport =
          spi::open_world(network, {.job = "test", .patience = patience, .host_id = host, .host_name = host});
      if (options.node_memory) {
        transport = spi::add_node_memory(std::move(transport), {.patience = patience,
                                                                .connect_timeout = std::chrono::seconds(30),
                                                                .arena_cap = std::uint64_t{64} << 20,
                                                                .threads = true});
      }
      body(make_collective(std::move(transport), patience), *hub);
    });
  }
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

}  // namespace crossrank::test
