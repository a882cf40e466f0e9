#include "collectives/shm/staging_ring.hpp"

#include <random>
#include <set>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/node/node_memory.hpp"

namespace crossrank::shm {
namespace {

constexpr std::size_t kibi = std::size_t{1} << 10;
constexpr std::size_t mebi = std::size_t{1} << 20;

struct Fixture {
  explicit Fixture(std::uint64_t cap = 16 * mebi) : memory(2, cap), arena(memory.arena(0)), ring(*arena) {}
  /// Takes a region for one round of a group. Regions of the round before the last are free again.
  StagingRing::Region round(std::size_t bytes) {
    auto const region = ring.take(bytes);
    ring.read_in(++number);
    ring.free_before(number - 1);
    return region;
  }
  test::NodeMemory memory;
  std::unique_ptr<node::Arena> arena;
  StagingRing ring;
  std::uint64_t number = 0;
};

bool overlap(StagingRing::Region const& a, StagingRing::Region const& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(StagingRing, never_reuses_regions_of_the_two_previous_rounds) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Fixture f;
  StagingRing::Region last{};
  StagingRing::Region before_last{};
  for (int i = 0; i < 20'000; ++i) {
    std::size_t const max = i % 50 == 0 ? 700 * kibi : 5'000;
    auto const bytes = std::uniform_int_distribution<std::size_t>(0, max)(random);
    auto const region = f.round(bytes);
    ASSERT_GE(region.bytes, bytes);
    ASSERT_GE(region.offset, region.slot.offset);
    ASSERT_LE(region.offset + region.bytes, region.slot.offset + region.slot.bytes);
    ASSERT_EQ(region.offset % 64, 0U);
    ASSERT_FALSE(overlap(region, last)) << "round " << i;
    ASSERT_FALSE(overlap(region, before_last)) << "round " << i;
    before_last = std::exchange(last, region);
  }
}

TEST(StagingRing, keeps_a_smaller_ring_until_its_last_reader_is_done) {
  Fixture f;
  auto const small = f.round(100);
  auto const large = f.round(600 * kibi);
  EXPECT_NE(small.slot.id, large.slot.id);
  EXPECT_EQ(f.ring.slots().size(), 2U);
  f.round(100);
  EXPECT_EQ(f.ring.slots().size(), 1U);
  EXPECT_EQ(f.ring.slots().front().id, large.slot.id);
}

TEST(StagingRing, grows_with_use_and_stops) {
  Fixture f;
  f.round(4 * kibi);
  EXPECT_EQ(f.ring.slots().front().bytes, StagingRing::min_capacity);
  for (int i = 0; i < 10'000; ++i) f.round(4 * kibi);
  EXPECT_EQ(f.ring.slots().back().bytes, StagingRing::max_by_use);
}

TEST(StagingRing, works_with_less_when_memory_is_short) {
  Fixture f(mebi);
  for (int i = 0; i < 3'000; ++i) f.round(20 * kibi);
  auto const slots = f.ring.slots();
  ASSERT_EQ(slots.size(), 1U);
  EXPECT_EQ(slots.front().bytes, 128 * kibi);
  EXPECT_THROW(static_cast<void>(f.ring.take(2 * mebi)), UnavailableError);
  f.round(20 * kibi);  // the smaller ring stays usable
}

TEST(StagingRing, keeps_space_for_an_abandoned_round) {
  Fixture f;
  f.round(8 * kibi);
  std::vector<StagingRing::Region> taken;
  // Their steps failed after they had reserved space. The regions may still be read in the next round, but not later.
  for (int i = 0; i < 12; ++i) {
    auto const region = f.ring.take(8 * kibi);
    for (auto const& other : taken) ASSERT_FALSE(overlap(region, other));
    taken.push_back(region);
  }
  f.round(8 * kibi);
  f.round(8 * kibi);
  f.round(8 * kibi);
  EXPECT_EQ(f.ring.slots().size(), 1U);
}

}  // namespace
}  // namespace crossrank::shm
