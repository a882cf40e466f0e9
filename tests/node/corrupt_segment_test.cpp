#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/error.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"
#include "tests/support/thread_ranks.hpp"

/// Writes words of the control segment that no rank would write, one at a time. The reading rank must find and name
/// each.
namespace crossrank::test {
namespace {

using node::Decision;
using node::Verdict;
using testing::HasSubstr;

node::Group& group_of(Collective const& world) { return *node::group_of(world.transport()->node_memory()); }

node::GroupBlocks& blocks_of(Collective const& world) { return group_of(world).comm().blocks(); }

/// Returns the last round at which this rank has arrived in the group of all ranks.
std::uint64_t last_round_of_node(Collective const& world) {
  std::uint64_t last = 0;
  for (auto const& line : blocks_of(world).members(0)[world.rank()].arrivals) last = std::max(last, line.round.load());
  return last;
}

/// Expects a `FormatError` that names segment and field.
void expect_damage(std::exception_ptr const& error, std::string const& field, std::string const& place) {
  ASSERT_NE(error, nullptr) << field;
  try {
    std::rethrow_exception(error);
  } catch (FormatError const& e) {
    EXPECT_EQ(e.section(), field) << e.what();
    EXPECT_EQ(e.info().resource, "control segment, " + place) << e.what();
    EXPECT_FALSE(e.group_usable()) << e.what();
  } catch (std::exception const& e) {
    ADD_FAILURE() << field << ": " << e.what();
  }
}

TEST(CorruptSegment, names_the_decision_of_a_group) {
  std::vector<std::uint64_t> const words{Decision{1, 4095, Verdict::lost}.pack(), Decision{1, 0, Verdict::pass}.pack(),
                                         1, 15, ~std::uint64_t{0}};
  for (auto const word : words) {
    auto const errors = try_thread_ranks(2, [&](Collective world) {
      if (world.rank() == 1) blocks_of(world).header(0).decision.store(word);
      world.barrier();
      world.barrier();
    });
    for (auto const& error : errors) expect_damage(error, "decision", "group block 0");
  }
}

/// Rank 0 creates a group of both ranks and announces it. Rank 1 calls `change` on the announcement before it calls
/// split.
std::vector<std::exception_ptr> split_with(
    std::function<void(Collective const& world, std::uint32_t made, node::Arrival& line)> const& change) {
  return try_thread_ranks(2, [&](Collective world) {
    if (world.rank() == 1) {
      auto const round = last_round_of_node(world) + 1;
      auto& line = node::line_of(blocks_of(world).members(0)[0], round);
      while (line.round.load() < round) std::this_thread::yield();
      std::uint32_t made = 0;
      std::memcpy(&made, line.inlined, sizeof made);
      change(world, made, line);
    }
    world.split({{0, 1}}).barrier();
  });
}

TEST(CorruptSegment, names_the_block_of_a_new_group) {
  for (std::uint32_t const number : {1024U, ~0U}) {
    auto const errors = split_with([&](Collective const&, std::uint32_t, node::Arrival& line) {
      std::memcpy(line.inlined, &number, sizeof number);
    });
    for (auto const& error : errors) expect_damage(error, "number", "group block " + std::to_string(number));
  }
}

TEST(CorruptSegment, does_not_mistake_another_group_for_the_new_one) {
  auto const errors = split_with([&](Collective const&, std::uint32_t, node::Arrival& line) {
    std::uint32_t const all = 0;
    std::memcpy(line.inlined, &all, sizeof all);
  });
  for (auto const& error : errors) expect_damage(error, "origin", "group block 0");
}

TEST(CorruptSegment, names_the_size_and_the_members_of_a_new_group) {
  for (std::uint32_t const size : {0U, 1U, 3U, 4096U, ~0U}) {
    std::uint32_t block = 0;
    auto const errors = split_with([&](Collective const& world, std::uint32_t made, node::Arrival&) {
      block = made;
      blocks_of(world).header(made).size = size;
    });
    for (auto const& error : errors) expect_damage(error, "size", "group block " + std::to_string(block));
  }
  for (std::uint32_t const rank : {1U, 2U, 5000U, ~0U}) {
    std::uint32_t block = 0;
    auto const errors = split_with([&](Collective const& world, std::uint32_t made, node::Arrival&) {
      block = made;
      blocks_of(world).members(made)[0].node_rank = rank;
    });
    for (auto const& error : errors) expect_damage(error, "rank of member 0", "group block " + std::to_string(block));
  }
}

TEST(CorruptSegment, names_the_counts_of_messages) {
  auto const errors = try_thread_ranks(2, [](Collective world) {
    auto& channel = group_of(world).channel(0, 1);
    auto tensor = Tensor::zeros({100}, Dtype::u8);
    if (world.rank() == 1) channel.received.store(1000);
    world.barrier();
    if (world.rank() == 0) world.send(tensor, 1);
    world.barrier();
  });
  expect_damage(errors[0], "messages taken by rank 1", "group block 0");
  EXPECT_NE(errors[1], nullptr) << "rank 1 should notice that rank 0 left";

  auto const others = try_thread_ranks(2, [](Collective world) {
    auto& channel = group_of(world).channel(0, 1);
    auto tensor = Tensor::zeros({100}, Dtype::u8);
    if (world.rank() == 0) channel.sent.store(9);
    world.barrier();
    if (world.rank() == 1) world.recv(tensor, 0);
    world.barrier();
  });
  expect_damage(others[1], "messages sent by rank 0", "group block 0");
}

/// The writer believes that a reader has taken a message that it has not, and overwrites it.
TEST(CorruptSegment, does_not_skip_messages_of_a_queue) {
  std::uint32_t block = 0;
  auto const errors = try_thread_ranks(2, [&](Collective world) {
    auto const queue = MessageQueue::create(world, {.writer_rank = 0, .chunk_bytes = 256, .chunks = 2});
    auto const tensor = Tensor::zeros({10}, Dtype::u8);
    if (world.rank() == 1) {
      block = blocks_of(world).made() - 1;
      blocks_of(world).endpoints(block)[1].cursor.store(1000);
    }
    world.barrier();
    for (int message = 0; queue.is_writer() && message < 5; ++message) queue.enqueue_tensor(tensor);
    world.barrier();
    while (!queue.is_writer()) static_cast<void>(queue.dequeue_tensor());
  });
  expect_damage(errors[1], "messages taken", "group block " + std::to_string(block));
}

/// A longer deadline holds only for ranks that run the caller's code.
TEST(CorruptSegment, does_not_wait_longer_for_a_rank_with_an_invalid_range_count) {
  alignas(node::RankRecord) static node::RankRecord record;
  for (std::uint32_t const ranges : {1U, 2U, 1000U}) {
    record.in_user_code = ranges;
    EXPECT_TRUE(is_in_user_code(record)) << ranges;
  }
  for (std::uint32_t const ranges : {0U, ~0U, 1U << 31, 0x12345678U}) {
    record.in_user_code = ranges;
    EXPECT_FALSE(is_in_user_code(record)) << ranges;
  }
}

}  // namespace
}  // namespace crossrank::test
