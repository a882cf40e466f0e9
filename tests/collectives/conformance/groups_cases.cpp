#include <algorithm>
#include <numeric>
#include <string>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Groups that split makes, and that groups do not disturb each other.
namespace crossrank::test {
namespace {

std::vector<int> ranks_of(Collective const& group) {
  auto const ranks = group.ranks();
  return {ranks.begin(), ranks.end()};
}

std::uint64_t sum_over(Collective const& group, std::uint64_t value) {
  std::vector<std::uint64_t> values(20, value);  // too many for an arrival line
  group.all_reduce(std::span(values));
  EXPECT_EQ(values.front(), values.back());
  return values.front();
}

/// Returns two lists with the ranks of the world. The second list is in descending order.
std::vector<std::vector<int>> evens_and_odds(int ranks) {
  std::vector<std::vector<int>> lists(2);
  for (int rank = 0; rank < ranks; ++rank) lists[as_size(rank % 2)].push_back(rank);
  std::ranges::reverse(lists[1]);
  return lists;
}

void the_world_knows_its_ranks(ConformanceRank& self) {
  auto const& world = self.world;
  EXPECT_TRUE(world.connected());
  EXPECT_EQ(world.name(), "world");
  EXPECT_EQ(world.global_rank(), world.rank());
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.local_world_size(), world.world_size());
  EXPECT_EQ(world.is_master(), world.rank() == 0);
  EXPECT_EQ(world.is_local_master(), world.rank() == 0);
  std::vector<int> all(as_size(world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(ranks_of(world), all);
}

void split_orders_ranks_as_listed(ConformanceRank& self) {
  auto const& world = self.world;
  auto const lists = evens_and_odds(world.world_size());
  auto group = world.split(lists);
  auto const& mine = lists[as_size(world.rank() % 2)];
  EXPECT_EQ(ranks_of(group), mine);
  EXPECT_EQ(group.world_size(), static_cast<int>(mine.size()));
  EXPECT_EQ(at_rank(mine, group.rank()), world.rank());
  EXPECT_EQ(group.global_rank(), world.rank());
  auto token = Tensor::scalar<std::int32_t>(world.rank());
  group.broadcast(token);
  EXPECT_EQ(token.item<std::int32_t>(), mine.front());
  EXPECT_EQ(sum_over(group, static_cast<std::uint64_t>(world.rank())),
            static_cast<std::uint64_t>(std::accumulate(mine.begin(), mine.end(), 0)));
  group.close();
}

/// The device of a rank does not depend on the group.
void a_group_keeps_the_local_ranks_of_the_job(ConformanceRank& self) {
  auto const& world = self.world;
  auto const backwards = world.split_by(0, -world.rank());
  auto const part = world.split(evens_and_odds(world.world_size()));
  for (auto const& group : {backwards, part, part.split_by(0), world.split_by(world.rank())}) {
    EXPECT_EQ(group.local_rank(), world.local_rank());
    EXPECT_EQ(group.local_world_size(), world.local_world_size());
    EXPECT_LE(group.local_size_in_group(), std::min(group.world_size(), world.local_world_size()));
    EXPECT_LT(group.local_rank_in_group(), group.local_size_in_group());
    EXPECT_EQ(group.is_local_master(), group.local_rank_in_group() == 0);
    // Each group has one local master on each of its nodes.
    auto const masters = group.all_reduce_value(group.is_local_master() ? 1 : 0);
    auto const shares = group.all_reduce_value(1.0 / group.local_size_in_group());
    EXPECT_NEAR(masters, shares, 1e-9);
  }
  EXPECT_EQ(world.local_rank_in_group(), world.local_rank());
  EXPECT_EQ(world.local_size_in_group(), world.local_world_size());
}

void a_rank_in_no_list_gets_no_group(ConformanceRank& self) {
  auto const& world = self.world;
  int const last = world.world_size() - 1;
  auto only_last = world.split({{}, {last}, {}});
  EXPECT_EQ(only_last.connected(), world.rank() == last);
  if (only_last.connected()) {
    EXPECT_EQ(only_last.world_size(), 1);
    EXPECT_EQ(sum_over(only_last, 5), 5U);
    only_last.close();
  }
  EXPECT_FALSE(world.split(std::vector<std::vector<int>>{}).connected());
  Collective const nobody;
  error_of<UsageError>([&] { nobody.barrier(); });
  error_of<UsageError>([&] { static_cast<void>(nobody.rank()); });
}

void split_by_colour_orders_by_key_then_rank(ConformanceRank& self) {
  auto const& world = self.world;
  auto group = world.split_by(7, -world.rank());
  EXPECT_EQ(group.rank(), world.world_size() - 1 - world.rank());
  auto same_key = world.split_by(0);
  EXPECT_EQ(same_key.rank(), world.rank());
  auto only_first = world.split_by(world.rank() == 0 ? 1 : -1);
  EXPECT_EQ(only_first.connected(), world.rank() == 0);
}

void splits_nest(ConformanceRank& self) {
  auto const& world = self.world;
  auto half = world.split_by(world.rank() % 2);
  auto quarter = half.split_by(half.rank() % 2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(sum_over(quarter, 1), static_cast<std::uint64_t>(quarter.world_size()));
    EXPECT_EQ(sum_over(world, 1), static_cast<std::uint64_t>(world.world_size()));
    EXPECT_EQ(sum_over(half, 1), static_cast<std::uint64_t>(half.world_size()));
  }
  for (int const member : quarter.ranks()) EXPECT_EQ(member % 4, world.rank() % 4);
  quarter.close();
  half.close();
  EXPECT_EQ(sum_over(world, 2), 2 * static_cast<std::uint64_t>(world.world_size()));
}

/// Makes more groups than there is space for at once. Groups that have ended free their space, whether closed or
/// dropped.
void groups_can_be_made_and_ended_without_limit(ConformanceRank& self) {
  auto const& world = self.world;
  std::uint64_t const ranks = static_cast<std::uint64_t>(world.world_size());
  std::vector<std::byte> const bulk(8192);
  for (int i = 0; i < 300; ++i) {
    auto group = world.split_by(0);
    ASSERT_EQ(sum_over(group, static_cast<std::uint64_t>(i)), ranks * static_cast<std::uint64_t>(i));
    if (i % 10 == 0) {
      EXPECT_EQ(group.all_gatherv(bulk).size(), ranks);
    }
    if (i % 2 == 0) group.close();
  }
}

/// A rank drops its handle right after its last call, while others may still read its data. That memory must not be
/// reused.
void sent_data_outlives_a_dropped_handle(ConformanceRank& self) {
  auto const& world = self.world;
  int const last = world.world_size() - 1;
  for (int i = 0; i < 20; ++i) {
    auto group = world.split_by(0);
    if (world.rank() == 0)
      group.transport()->wait(group.transport()->post_send({.bytes = pattern(5000, i)}, last, 0),
                              group.timeout_policy());
    if (world.rank() == 0 && last != 0) group = Collective();
    std::vector<std::uint64_t> noise(700, 3);
    world.all_reduce(std::span(noise));  // takes a slot of the same size
    if (world.rank() == last) {
      std::vector<std::byte> got(5000);
      group.transport()->wait(group.transport()->post_recv({.bytes = got}, 0, 0), group.timeout_policy());
      EXPECT_EQ(got, pattern(5000, i)) << "message " << i;
    }
  }
}

void messages_stay_in_their_group(ConformanceRank& self) {
  auto const& world = self.world;
  auto const other = world.split_by(0);
  int const last = world.world_size() - 1;
  auto a = Tensor::scalar<std::int32_t>(1);
  auto b = Tensor::scalar<std::int32_t>(2);
  if (world.rank() == 0) {
    world.send(a, last);
    other.send(b, last);
  }
  if (world.rank() == last) {
    other.recv(a, 0);
    world.recv(b, 0);
    EXPECT_EQ(a.item<std::int32_t>(), 2);
    EXPECT_EQ(b.item<std::int32_t>(), 1);
  }
}

void an_abort_stays_in_its_group(ConformanceRank& self) {
  auto const& world = self.world;
  auto const doomed = world.split_by(0);
  auto const sound = world.split_by(0);
  doomed.abort("only this one");
  error_of<PeerLostError>([&] { doomed.barrier(); });
  EXPECT_EQ(sum_over(sound, 1), static_cast<std::uint64_t>(world.world_size()));
  EXPECT_EQ(sum_over(world, 1), static_cast<std::uint64_t>(world.world_size()));
}

constexpr ConformanceCase groups_list[] = {
    {"the_world_knows_its_ranks", the_world_knows_its_ranks},
    {"split_orders_ranks_as_listed", split_orders_ranks_as_listed, 2},
    {"a_group_keeps_the_local_ranks_of_the_job", a_group_keeps_the_local_ranks_of_the_job},
    {"a_rank_in_no_list_gets_no_group", a_rank_in_no_list_gets_no_group},
    {"split_by_colour_orders_by_key_then_rank", split_by_colour_orders_by_key_then_rank},
    {"splits_nest", splits_nest},
    {"groups_can_be_made_and_ended_without_limit", groups_can_be_made_and_ended_without_limit},
    {"sent_data_outlives_a_dropped_handle", sent_data_outlives_a_dropped_handle},
    {"messages_stay_in_their_group", messages_stay_in_their_group},
    {"an_abort_stays_in_its_group", an_abort_stays_in_its_group},
};

}  // namespace

std::span<ConformanceCase const> group_cases() { return groups_list; }

}  // namespace crossrank::test
