#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

namespace crossrank::test {
namespace {

using spi::OpKind;

using TransportBody = std::function<void(spi::Transport& world, MemoryHub& hub)>;

/// Runs `body` on ranks that are threads; two hosts with shared memory.
void run_transports(int count, TransportBody const& body, MessageRankOptions options = {}) {
  options.node_memory = true;
  auto const hub = std::make_shared<MemoryHub>(count);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back([=, &body] { body(*message_transport(hub, rank, options), *hub); });
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

constexpr int four = 4;

struct Stop {
  OpKind op_kind;
  int rank;
};

/// A rank that has begun a long collective stops. Some ranks of its node wait for it, some ranks of the other
/// node wait for a rank that waits itself, and some are in the next call.
class StopInLongCollective : public testing::TestWithParam<Stop> {};

TEST_P(StopInLongCollective, is_blamed_by_all_others) {
  auto const [op_kind, stopped] = GetParam();
  spi::TimeoutPolicy const timeout_policy{.timeout = std::chrono::seconds(4)};
  std::latch others_are_done(four - 1);
  auto const body = [&, op_kind = op_kind, stopped = stopped](spi::Transport& world, MemoryHub&) {
    std::size_t const each = std::size_t{3} << 20;
    std::vector<std::byte> mine(each);
    std::vector<std::byte> all(four * each);
    std::vector<std::size_t> const counts(four, each);
    auto const post = [&] {
      return op_kind == OpKind::broadcast
                 ? world.post_broadcast({.op_kind = op_kind}, {.bytes = all}, 0)
                 : world.post_all_gatherv({.op_kind = op_kind}, {.bytes = mine}, counts, {.bytes = all});
    };
    auto const barrier = [&] { world.wait(world.post_barrier({.op_kind = OpKind::barrier}), timeout_policy); };
    barrier();
    if (world.rank() == stopped) {
      auto const request_id = post();
      others_are_done.wait();
      world.cancel(request_id);
      return;
    }
    auto const error = error_of<TimeoutError>([&] {
      world.wait(post(), timeout_policy);
      barrier();
    });
    others_are_done.count_down();
    EXPECT_THAT(error.failed_ranks, testing::ElementsAre(stopped)) << error.message;
    EXPECT_THAT(error.message,
                testing::StartsWith("rank " + std::to_string(stopped) + " made no progress for 4000 ms: "));
    EXPECT_FALSE(error.group_usable);
    EXPECT_THAT(error_of<TimeoutError>(barrier).failed_ranks, testing::ElementsAre(stopped));
  };
  run_transports(four, body, {.timeout = timeout_policy.timeout});
}

std::vector<Stop> stops() {
  std::vector<Stop> all;
  for (auto const op_kind : {OpKind::broadcast, OpKind::all_gatherv}) {
    for (int rank = 0; rank < four; ++rank) all.push_back({op_kind, rank});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Stop, StopInLongCollective, testing::ValuesIn(stops()), [](auto const& one) {
  return std::string(spi::to_string(one.param.op_kind)) + "_on_rank_" + std::to_string(one.param.rank);
});

/// Returns a function that makes the group of all ranks, each time a new one.
std::function<Collective()> joins(std::shared_ptr<MemoryHub> const& hub, int rank) {
  auto const network = spi::make_network(std::make_unique<MemoryPacketTransport>(hub, rank));
  return [network, host = "host" + std::to_string(rank % 2)] {
    spi::TimeoutPolicy const policy{.timeout = step_timeout};
    auto across = network->open_world({.job = "test", .timeout_policy = policy, .host_id = host, .host_name = host});
    return make_collective(
        spi::add_node_memory(std::move(across),
                             {.timeout_policy = policy, .connect_timeout = step_timeout, .threads = true}),
        policy);
  };
}

/// Runs `body` on ranks that can join several times.
void run_joining(std::function<void(int rank, std::function<Collective()> const& join)> const& body) {
  auto const hub = std::make_shared<MemoryHub>(four);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < four; ++rank) ranks.emplace_back([=, &body] { body(rank, joins(hub, rank)); });
  for (auto const& error : run_threads(ranks)) EXPECT_EQ(text_of(error), "");
}

TEST(RankThatLeft, does_not_end_messages_between_others_and_can_join_again) {
  constexpr auto until_a_departure_counts = std::chrono::milliseconds(600);
  std::latch has_left(1);
  run_joining([&](int rank, auto const& join) {
    auto token = Tensor::scalar<std::int32_t>(rank);
    {
      auto const world = join();
      world.barrier();
      if (rank == 0) {
        has_left.wait();
        std::this_thread::sleep_for(until_a_departure_counts);
        world.send(token, 1);
        world.send(token, 1);
      }
      if (rank == 1) {
        world.recv(token, 0);
        EXPECT_EQ(world.recv_any(token), 0);
      }
    }
    if (rank == 3) has_left.count_down();
    auto world = join();
    world.barrier();
    world.close();
  });
}

TEST(RankThatLeft, ends_a_collective_that_needs_it_and_can_join_again) {
  run_joining([&](int rank, auto const& join) {
    {
      auto const world = join();
      world.barrier();
      if (rank != 3) {
        auto const error = error_of<PeerLostError>([&] { world.barrier(); });
        EXPECT_THAT(error.failed_ranks, testing::ElementsAre(3)) << error.message;
      }
    }
    auto world = join();
    world.barrier();
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
