#include "lib/node/memory/group_blocks.hpp"

#include <chrono>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/node/node_memory.hpp"

namespace crossrank::node {
namespace {

/// Three ranks. The group of all is block 0, and all have joined it.
struct Blocks : testing::Test {
  Blocks() {
    EXPECT_EQ(of(0).make({0, 1, 2}, "node", {}).index, 0U);
    for (int member = 0; member < 3; ++member) of(member).join(0, member);
  }
  [[nodiscard]] GroupBlocks of(int rank) const { return {memory.control->data(), 3, rank, memory.control_fd}; }
  void die(int rank) const { memory.record(rank).state = static_cast<std::uint32_t>(AttachState::dead); }
  void decide(std::uint64_t round, Verdict verdict) const {
    of(0).header(0).decision = Decision{round, 0, verdict}.pack();
  }
  test::NodeMemory memory{3, 1 << 20};
  GroupBlocks::Origin const split{.parent = 0, .round = 7};
};

TEST_F(Blocks, are_free_once_all_members_have_left) {
  ASSERT_EQ(of(2).make({2, 0}, "pair", split).index, 1U);
  of(2).join(1, 0);
  of(0).join(1, 1);
  of(2).leave(1, 0);
  EXPECT_EQ(of(1).make({1, 0}, "other", split).index, 2U);
  of(0).leave(1, 1);
  EXPECT_EQ(BlockUse::unpack(of(0).header(1).use_word).state, BlockState::free);
  EXPECT_EQ(of(1).make({1, 0}, "third", split).index, 1U);
}

TEST_F(Blocks, are_free_once_all_living_members_have_left) {
  ASSERT_EQ(of(0).make({0, 1, 2}, "trio", split).index, 1U);
  for (int member = 0; member < 3; ++member) of(member).join(1, member);
  of(0).leave(1, 0);
  die(2);
  EXPECT_EQ(of(0).make({0}, "other", split).index, 2U);
  of(1).leave(1, 1);
  EXPECT_EQ(of(0).make({0}, "third", split).index, 1U);
}

TEST_F(Blocks, are_free_when_the_maker_died_before_announcing) {
  ASSERT_EQ(of(2).make({2, 0}, "pair", split).index, 1U);
  die(2);
  EXPECT_EQ(of(0).make({0}, "too early", split).index, 2U);  // the round of the split is not decided yet
  decide(7, Verdict::lost);
  EXPECT_EQ(of(0).make({0}, "in its place", {}).index, 1U);
}

TEST_F(Blocks, are_free_when_the_maker_died_half_way) {
  of(1).header(1).use_word = BlockUse{.number = 4, .maker = 1, .state = BlockState::being_made}.pack();
  EXPECT_EQ(of(0).make({0}, "beside it", split).index, 2U);
  die(1);
  EXPECT_EQ(of(0).make({0}, "in its place", split).index, 1U);
  EXPECT_EQ(BlockUse::unpack(of(0).header(1).use_word).number, 5U);
}

TEST_F(Blocks, stay_reserved_after_the_announcement) {
  ASSERT_EQ(of(2).make({2, 0}, "pair", split).index, 1U);
  decide(7, Verdict::pass);
  die(2);
  EXPECT_EQ(of(1).make({1}, "other", split).index, 2U);
  decide(8, Verdict::lost);  // a later round of the parent says nothing about the split
  EXPECT_EQ(of(1).make({1}, "another", split).index, 3U);
}

TEST_F(Blocks, are_free_when_the_parent_ends_and_no_member_joined) {
  ASSERT_EQ(of(2).make({2, 0}, "pair", split).index, 1U);
  decide(7, Verdict::pass_failed);
  die(2);
  for (int const member : {0, 1}) of(member).leave(0, member);
  EXPECT_EQ(of(1).make({1}, "in place of the parent", {}).index, 0U);
  EXPECT_EQ(of(1).make({1}, "in place of the child", {}).index, 1U);
}

TEST_F(Blocks, are_free_once_discarded) {
  auto const made = of(2).make({2, 0}, "pair", split);
  ASSERT_EQ(made.index, 1U);
  of(2).discard(made);
  EXPECT_EQ(of(0).make({0}, "other", split).index, 1U);
}

/// The round of the split has failed, so another rank may take the block before its maker learns of it.
TEST_F(Blocks, of_another_use_are_not_discarded) {
  auto const made = of(0).make({0, 1}, "pair", split);
  decide(7, Verdict::lost);
  ASSERT_EQ(of(1).make({1, 2}, "in its place", {}).index, made.index);
  of(0).discard(made);
  EXPECT_EQ(BlockUse::unpack(of(0).header(made.index).use_word).state, BlockState::ready);
  EXPECT_NE(of(2).make({2}, "other", {}).index, made.index);
}

/// A rank that rings a departed rank's groups reads blocks which it has no part in, with their old contents in mind.
TEST_F(Blocks, are_not_reused_while_a_rank_rings_their_doorbells) {
  auto const made = of(2).make({2, 0}, "pair", split);
  of(2).discard(made);
  memory.record(1).ringing = 1;
  EXPECT_EQ(of(0).make({0}, "never used before", {}).index, made.index + 1);
  EXPECT_EQ(BlockUse::unpack(of(0).header(made.index).use_word).state, BlockState::free);
  memory.record(1).ringing = 0;
  EXPECT_EQ(of(0).make({0}, "in its place", {}).index, made.index);
}

TEST_F(Blocks, are_reused_when_the_rank_that_rang_has_died) {
  auto const made = of(2).make({2, 0}, "pair", split);
  of(2).discard(made);
  memory.record(1).ringing = 1;
  die(1);
  EXPECT_EQ(of(0).make({0}, "in its place", {}).index, made.index);
}

/// There is no block that has never been used, so the maker waits. It does not wait forever.
TEST_F(Blocks, are_refused_after_a_wait_when_a_rank_never_stops_ringing) {
  auto const capacity = ControlGeometry(3).group_capacity();
  GroupBlocks::Made last;
  for (std::uint32_t index = 1; index < capacity; ++index) last = of(0).make({0}, "one of many", {});
  ASSERT_EQ(last.index, capacity - 1);
  of(0).discard(last);
  memory.record(1).ringing = 1;
  EXPECT_THROW(static_cast<void>(of(0).make({0}, "one more", {})), UnavailableError);
  auto const after = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    memory.record(1).ringing = 0;
  });
  EXPECT_EQ(of(0).make({0}, "one more", {}).index, last.index);
}

/// Corrupt blocks must not lead `make` out of the segment.
TEST_F(Blocks, may_hold_any_bytes) {
  ASSERT_EQ(of(2).make({2, 0}, "pair", split).index, 1U);
  auto const blocks = of(0);
  for (std::uint32_t const word : {3U, 4096U, 1U << 20, ~0U}) {
    blocks.header(0).size = word;
    blocks.header(1).parent = word;
    for (int member = 0; member < 2; ++member) blocks.members(1)[member].node_rank = word;
    EXPECT_LE(blocks.member_count(0), 3);
    EXPECT_LE(sizeof(GroupHeader) + sizeof(QueueHeader) + as_size(blocks.endpoint_count(0)) * sizeof(QueueEndpoint),
              ControlGeometry(3).group_stride());
    auto const made = of(1).make({1}, "other", {});
    EXPECT_LT(made.index, ControlGeometry(3).group_capacity());
    of(1).discard(made);
    for (auto const state : {BlockState::queue, BlockState::being_made, static_cast<BlockState>(9)}) {
      blocks.header(0).use_word = BlockUse{.number = 7, .maker = static_cast<int>(word & 0xfff), .state = state}.pack();
      static_cast<void>(of(1).make({1}, "another", {}).index);
    }
    blocks.header(0).use_word = BlockUse{.number = 1, .maker = 0, .state = BlockState::ready}.pack();
  }
  memory.header().groups_made = ~0U;
  EXPECT_EQ(blocks.made(), ControlGeometry(3).group_capacity());
  EXPECT_LT(of(1).make({1}, "one more", {}).index, blocks.made());
}

}  // namespace
}  // namespace crossrank::node
