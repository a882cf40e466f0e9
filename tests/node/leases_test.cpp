#include "lib/node/memory/leases.hpp"

#include <gtest/gtest.h>

#include "tests/node/node_memory.hpp"

namespace crossrank::node {
namespace {

constexpr int owner = 0;
constexpr int reader = 1;
constexpr std::uint32_t slot = 5;

struct Leases : testing::Test {
  void expect(std::uint32_t offered, std::uint32_t taken) const {
    auto const word = table.load(owner, slot, reader);
    EXPECT_EQ(word.offered, offered);
    EXPECT_EQ(word.taken, taken);
  }
  test::NodeMemory memory{3, 1 << 20};
  LeaseTable table = memory.leases();
};

TEST_F(Leases, go_from_offer_to_lease_to_free) {
  EXPECT_TRUE(table.load(owner, slot, reader).free());
  EXPECT_TRUE(table.offer(owner, slot, 7, reader));
  expect(1, 0);
  EXPECT_TRUE(table.take(owner, slot, 7, reader));
  expect(0, 1);
  table.drop(owner, slot, 7, reader);
  EXPECT_TRUE(table.load(owner, slot, reader).free());
}

TEST_F(Leases, cannot_be_held_after_their_use_of_the_slot_has_been_closed) {
  EXPECT_TRUE(table.hold(owner, slot, 7, reader));
  EXPECT_FALSE(table.close(owner, slot, 7, reader));
  table.drop(owner, slot, 7, reader);
  EXPECT_TRUE(table.close(owner, slot, 7, reader));
  EXPECT_FALSE(table.hold(owner, slot, 7, reader));
  EXPECT_TRUE(table.hold(owner, slot, 8, reader));
}

TEST_F(Leases, can_be_held_when_generations_wrap_around) {
  constexpr auto next_to_last = LeaseWord::generation_mask - 1;
  for (auto generation = next_to_last; generation != next_to_last + 4; ++generation) {
    EXPECT_TRUE(table.hold(owner, slot, generation, reader)) << generation;
    table.drop(owner, slot, generation, reader);
    EXPECT_TRUE(table.close(owner, slot, generation, reader)) << generation;
  }
}

TEST_F(Leases, count_offers_and_leases_separately) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table.offer(owner, slot, 7, reader));
  EXPECT_TRUE(table.take(owner, slot, 7, reader));
  expect(2, 1);
  table.revoke(owner, slot, 7, reader);
  expect(1, 1);
  table.decline(owner, slot, 7, reader);
  expect(0, 1);
  table.revoke(owner, slot, 7, reader);  // revoke does not end a lease
  expect(0, 1);
  EXPECT_FALSE(table.take(owner, slot, 7, reader));
}

TEST_F(Leases, refuse_another_generation) {
  EXPECT_TRUE(table.offer(owner, slot, 7, reader));
  EXPECT_FALSE(table.take(owner, slot, 8, reader));
  table.revoke(owner, slot, 6, reader);
  table.decline(owner, slot, 8, reader);
  expect(1, 0);
  EXPECT_TRUE(table.take(owner, slot, 7, reader));
  table.drop(owner, slot, 8, reader);
  expect(0, 1);
  table.drop(owner, slot, 7, reader);
  table.drop(owner, slot, 7, reader);  // there is no such lease
  EXPECT_TRUE(table.load(owner, slot, reader).free());
}

TEST_F(Leases, take_a_new_generation_once_the_word_is_free) {
  EXPECT_TRUE(table.offer(owner, slot, 7, reader));
  table.revoke(owner, slot, 7, reader);
  EXPECT_FALSE(table.take(owner, slot, 7, reader));
  EXPECT_TRUE(table.offer(owner, slot, 8, reader));
  EXPECT_FALSE(table.take(owner, slot, 7, reader));
  EXPECT_TRUE(table.take(owner, slot, 8, reader));
}

TEST_F(Leases, compare_generations_by_their_low_bits) {
  auto const large = (std::uint64_t{3} << 40) | 9;
  EXPECT_TRUE(table.offer(owner, slot, large, reader));
  EXPECT_TRUE(table.take(owner, slot, large, reader));
  table.drop(owner, slot, large, reader);
  EXPECT_TRUE(table.load(owner, slot, reader).free());
}

TEST_F(Leases, stop_at_the_limit_of_the_count) {
  for (std::uint32_t i = 0; i < LeaseWord::count_limit; ++i) ASSERT_TRUE(table.offer(owner, slot, 7, reader));
  EXPECT_FALSE(table.offer(owner, slot, 7, reader));
  expect(LeaseWord::count_limit, 0);
  for (std::uint32_t i = 0; i < LeaseWord::count_limit; ++i) ASSERT_TRUE(table.take(owner, slot, 7, reader));
  EXPECT_FALSE(table.offer(owner, slot, 7, reader));
  expect(0, LeaseWord::count_limit);
}

TEST_F(Leases, keep_owners_slots_and_readers_separate) {
  EXPECT_TRUE(table.offer(owner, slot, 7, reader));
  EXPECT_TRUE(table.load(owner, slot, 2).free());
  EXPECT_TRUE(table.load(owner, slot + 1, reader).free());
  EXPECT_TRUE(table.load(2, slot, reader).free());
  table.clear(owner, slot, reader);
  EXPECT_TRUE(table.load(owner, slot, reader).free());
}

}  // namespace
}  // namespace crossrank::node
