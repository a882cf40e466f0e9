#include "lib/node/memory/control_layout.hpp"

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "lib/node/memory/device_flight_layout.hpp"

namespace crossrank::node {
namespace {

TEST(ControlGeometry, lays_out_the_parts_without_overlap) {
  for (int const ranks : {1, 2, 3, 64, 1000, max_ranks}) {
    ControlGeometry const geometry(ranks);
    auto const n = as_size(ranks);
    EXPECT_EQ(geometry.records_offset(), sizeof(ControlHeader));
    EXPECT_GE(geometry.flights_offset(), geometry.records_offset() + n * sizeof(RankRecord)) << ranks;
    EXPECT_EQ(geometry.device_flights_offset(), geometry.flights_offset() + n * sizeof(FlightRing)) << ranks;
    EXPECT_GE(geometry.groups_offset(), geometry.device_flights_offset() + n * sizeof(DeviceFlightRing)) << ranks;
    EXPECT_EQ(geometry.leases_offset(), geometry.groups_offset() + geometry.group_capacity() * geometry.group_stride())
        << ranks;
    EXPECT_GE(geometry.total_bytes(),
              geometry.leases_offset() + n * geometry.slot_capacity() * geometry.lease_row_bytes())
        << ranks;
    for (auto const at : {geometry.flights_offset(), geometry.groups_offset(), geometry.group_stride(),
                          geometry.leases_offset(), geometry.total_bytes()}) {
      EXPECT_EQ(at % page_bytes, 0U) << ranks;
    }
    EXPECT_EQ(geometry.lease_row_bytes() % 64, 0U);
    EXPECT_GE(geometry.lease_row_bytes(), n * sizeof(std::uint64_t));
    EXPECT_GE(geometry.slot_capacity(), 100U) << ranks;
    EXPECT_LE(geometry.total_bytes(), std::size_t{1} << 46) << ranks;
  }
}

TEST(ControlGeometry, reserves_space_for_members_and_pairs_of_a_group) {
  EXPECT_GE(ControlGeometry::group_bytes(3), sizeof(GroupHeader) + 3 * sizeof(MemberBlock) + 9 * sizeof(Channel));
  EXPECT_EQ(ControlGeometry(7).group_stride(), ControlGeometry::group_bytes(7));
  EXPECT_LE(ControlGeometry::group_bytes(6), ControlGeometry::group_bytes(7));
}

/// `docs/BACKENDS.md` and `Collective::split` state these numbers.
TEST(ControlGeometry, has_space_for_fewer_groups_on_nodes_with_many_ranks) {
  EXPECT_EQ(ControlGeometry(99).group_capacity(), 1024U);
  EXPECT_LT(ControlGeometry(100).group_capacity(), 1024U);
  EXPECT_EQ(ControlGeometry(128).group_capacity(), 629U);
  EXPECT_GT(ControlGeometry(203).group_capacity(), 256U);
  EXPECT_EQ(ControlGeometry(204).group_capacity(), 256U);
}

TEST(Decision, round_trips_through_its_word) {
  for (auto const round : {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 48) - 1}) {
    for (int const decider : {0, 1, max_ranks - 1}) {
      for (auto const verdict : {Verdict::pass, Verdict::pass_failed, Verdict::lost, Verdict::timeout,
                                 Verdict::mismatch, Verdict::aborted}) {
        auto const back = Decision::unpack(Decision{round, decider, verdict}.pack());
        EXPECT_EQ(back.round, round);
        EXPECT_EQ(back.decider, decider);
        EXPECT_EQ(back.verdict, verdict);
        EXPECT_EQ(back.failed(), verdict != Verdict::pass && verdict != Verdict::pass_failed);
      }
    }
  }
}

TEST(ArrivalWord, is_either_reached_by_the_member_or_vetoed_by_another) {
  EXPECT_TRUE(ArrivalWord{7}.reached(7));
  EXPECT_TRUE(ArrivalWord{11}.reached(7));
  EXPECT_FALSE(ArrivalWord{3}.reached(7));

  auto const vetoed = ArrivalWord::of({7, max_ranks - 1, Verdict::timeout});
  EXPECT_TRUE(vetoed.vetoed());
  EXPECT_FALSE(ArrivalWord{(std::uint64_t{1} << 47) - 1}.vetoed());
  EXPECT_FALSE(vetoed.reached(7));
  EXPECT_FALSE(vetoed.reached(11));
  EXPECT_TRUE(vetoed.reached(3));
  EXPECT_EQ(vetoed.decision().pack(), (Decision{7, max_ranks - 1, Verdict::timeout}.pack()));
}

TEST(LeaseWord, round_trips_through_its_word) {
  for (auto const generation : {std::uint64_t{0}, std::uint64_t{1}, LeaseWord::generation_mask}) {
    for (std::uint32_t const offered : {0U, 1U, LeaseWord::count_limit}) {
      for (std::uint32_t const taken : {0U, 2U, LeaseWord::count_limit}) {
        auto const back = LeaseWord::unpack(LeaseWord{generation, offered, taken}.pack());
        EXPECT_EQ(back.generation, generation);
        EXPECT_EQ(back.offered, offered);
        EXPECT_EQ(back.taken, taken);
        EXPECT_EQ(back.free(), offered == 0 && taken == 0);
      }
    }
  }
}

}  // namespace
}  // namespace crossrank::node
