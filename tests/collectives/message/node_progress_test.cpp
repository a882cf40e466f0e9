#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/spi/add_node_memory.hpp>
#include <crossrank/spi/network.hpp>

#include "collectives/message/network.hpp"
#include "lib/node/group/group.hpp"
#include "tests/collectives/message/members.hpp"
#include "tests/support/message_ranks.hpp"

/// A rank works over packets and in the memory of its node. Ranks that wait for it count both as progress.
namespace crossrank::test {
namespace {

struct NodeRank {
  std::shared_ptr<spi::Network> network{};
  Collective world{};

  NodeRank(std::shared_ptr<MemoryHub> const& hub, int rank)
      : network(spi::make_network(std::make_unique<MemoryPacketTransport>(hub, rank))) {
    spi::TimeoutPolicy const policy{.timeout = step_timeout};
    auto const host = "host" + std::to_string(rank / 2);
    auto across = network->open_world(
        {.job = "test", .timeout_policy = policy, .connect_timeout = step_timeout, .host_id = host, .host_name = host});
    world = make_collective(spi::add_node_memory(std::move(across), {.timeout_policy = policy,
                                                                     .connect_timeout = step_timeout,
                                                                     .arena_cap = std::uint64_t{64} << 20,
                                                                     .threads = true}),
                            policy);
  }
  [[nodiscard]] message::Status status() const {
    auto& messages = dynamic_cast<message::Network&>(*network);
    auto const guard = messages.lock();
    return messages.own_status();
  }
};

void run_node_ranks(int count, std::function<void(NodeRank&)> const& body) {
  auto const hub = std::make_shared<MemoryHub>(count);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.emplace_back([=, &body] {
      NodeRank self(hub, rank);
      body(self);
    });
  }
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

TEST(NodeProgress, counts_work_in_the_memory_of_the_node_between_nodes) {
  run_node_ranks(4, [](NodeRank& self) {
    auto node = self.world.split_by(self.world.rank() / 2);
    ASSERT_EQ(node.backend(), "shm");
    auto const before = self.status().progress;
    for (int i = 0; i < 3; ++i) static_cast<void>(node.all_reduce_value(i));
    EXPECT_GE(self.status().progress, before + 3);
    node.transport()->mark_user_code(spi::UserCode::begins);
    EXPECT_TRUE(self.status().user_code);
    node.transport()->mark_user_code(spi::UserCode::ends);
    EXPECT_FALSE(self.status().user_code);
    node.close();
    self.world.close();
  });
}

/// Ranks 1 and 2 exchange chunks between the nodes.
TEST(NodeProgress, counts_chunks_between_nodes_in_the_memory_of_the_node) {
  constexpr int chunks = 20;  // more than a barrier counts
  run_node_ranks(4, [](NodeRank& self) {
    auto const rank = self.world.rank();
    auto const& comm = dynamic_cast<node::Group&>(*self.world.transport()->node_memory()).comm();
    auto const before = comm.progress();
    self.world.barrier();
    auto tensor = Tensor::zeros({chunks * static_cast<std::int64_t>(message::chunk_bytes)}, Dtype::u8);
    if (rank == 1) self.world.send(tensor, 2);
    if (rank == 2) self.world.recv(tensor, 1);
    EXPECT_EQ(comm.progress() >= before + chunks, rank == 1 || rank == 2) << rank;
    self.world.close();
  });
}

TEST(NodeProgress, outlives_the_memory_of_the_node) {
  run_node_ranks(2, [](NodeRank& self) {
    self.world.close();
    self.world = {};
    auto const before = self.status().progress;
    EXPECT_EQ(self.status().progress, before);
    EXPECT_FALSE(self.status().user_code);
  });
}

}  // namespace
}  // namespace crossrank::test
