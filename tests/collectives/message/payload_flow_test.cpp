#include "collectives/message/payload_flow.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/message/members.hpp"

namespace crossrank::test::payload_flow_test {
namespace {

using message::Exchange;
using message::Relay;
using testing::ElementsAre;

constexpr std::size_t large = 3 * message::chunk_bytes + 17;

TEST(PayloadFlow, relays_a_broadcast_down_a_chain_from_the_root) {
  Members members(3);
  auto const sent = pattern(large, 1);
  std::vector<std::vector<std::byte>> buffers(3, std::vector<std::byte>(large));
  buffers[1] = sent;
  for (int rank = 0; rank < 3; ++rank)
    members[rank].flow().start(1, Relay::chain(members[rank].link(), 1, at_rank(buffers, rank)));
  members.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(members[rank].flow().complete()) << rank;
    EXPECT_EQ(at_rank(buffers, rank), sent) << rank;
  }
}

TEST(PayloadFlow, gathers_blocks_of_all_sizes_around_a_ring) {
  Members members(3);
  std::array<std::uint64_t, 3> const sizes{large, 0, 5};
  std::vector<std::byte> whole;
  for (int rank = 0; rank < 3; ++rank) {
    auto const block = pattern(at_rank(sizes, rank), rank);
    whole.insert(whole.end(), block.begin(), block.end());
  }
  std::vector<std::vector<std::byte>> buffers(3, std::vector<std::byte>(whole.size()));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto const offset =
        static_cast<std::ptrdiff_t>(std::accumulate(sizes.begin(), sizes.begin() + rank, std::size_t{0}));
    std::copy_n(whole.begin() + offset, sizes[rank], buffers[rank].begin() + offset);
    auto& member = members[static_cast<int>(rank)];
    member.flow().start(1, Relay::ring(member.link(), sizes, buffers[rank]));
  }
  members.deliver_all();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(members[static_cast<int>(rank)].flow().complete()) << rank;
    EXPECT_EQ(buffers[rank], whole) << rank;
  }
}

TEST(PayloadFlow, exchanges_parts_without_a_detour) {
  Members members(2);
  std::array<std::vector<std::byte>, 2> const in{pattern(30, 0), pattern(large + 3, 1)};
  std::array<std::vector<std::byte>, 2> out{std::vector<std::byte>(10 + large), std::vector<std::byte>(20 + 3)};
  std::array<std::size_t, 2> const from_0{10, 20};
  std::array<std::size_t, 2> const from_1{large, 3};
  std::array<std::size_t, 2> const to_0{10, large};
  std::array<std::size_t, 2> const to_1{20, 3};
  auto first = Exchange::of(in[0], from_0, out[0], to_0);
  first.copy_own(0);
  members[0].flow().start(1, std::move(first));
  auto second = Exchange::of(in[1], from_1, out[1], to_1);
  second.copy_own(1);
  members[1].flow().start(1, std::move(second));
  members.deliver_all();
  EXPECT_TRUE(members[0].flow().complete());
  EXPECT_TRUE(members[1].flow().complete());
  EXPECT_TRUE(std::ranges::equal(std::span(out[0]).first(10), std::span(in[0]).first(10)));
  EXPECT_TRUE(std::ranges::equal(std::span(out[0]).subspan(10), std::span(in[1]).first(large)));
  EXPECT_TRUE(std::ranges::equal(std::span(out[1]).first(20), std::span(in[0]).subspan(10)));
  EXPECT_TRUE(std::ranges::equal(std::span(out[1]).subspan(20), std::span(in[1]).subspan(large)));
}

/// A packet transport that always has space must not keep a rank from answering pings.
TEST(PayloadFlow, sends_a_long_payload_in_several_goes) {
  std::vector<std::byte> bytes((message::chunks_at_once + 1) * message::chunk_bytes);
  std::array<std::size_t, 2> const to_1{0, bytes.size()};
  std::array<std::size_t, 2> const from_1{0, 0};
  for (bool const relays : {true, false}) {
    Members members(2);
    if (relays) {
      members[0].flow().start(1, Relay::chain(members[0].link(), 0, bytes));
    } else {
      members[0].flow().start(1, Exchange::of(bytes, to_1, {}, from_1));
    }
    EXPECT_FALSE(members[0].flow().complete());
    members.deliver_all();
    EXPECT_TRUE(members[0].flow().complete());
  }
}

TEST(PayloadFlow, keeps_chunks_that_come_before_the_round_has_passed) {
  Members members(2);
  auto sent = pattern(large, 0);
  std::vector<std::byte> got(large);
  members[0].flow().start(1, Relay::chain(members[0].link(), 0, sent));
  members.deliver_all();
  members[1].flow().start(1, Relay::chain(members[1].link(), 0, got));
  EXPECT_TRUE(members[1].flow().complete());
  EXPECT_EQ(got, sent);
}

TEST(PayloadFlow, sends_nothing_while_the_packet_transport_is_full) {
  Members members(2);
  auto sent = pattern(large, 0);
  std::vector<std::byte> got(large);
  members[0].set_full(true);
  members[0].flow().start(1, Relay::chain(members[0].link(), 0, sent));
  members[1].flow().start(1, Relay::chain(members[1].link(), 0, got));
  members.deliver_all();
  std::vector<int> awaited;
  members[1].flow().append_awaited(awaited);
  EXPECT_THAT(awaited, ElementsAre(0));
  members[0].set_full(false);
  members.deliver_all();
  EXPECT_TRUE(members[1].flow().complete());
  EXPECT_EQ(got, sent);
}

TEST(PayloadFlow, reports_more_bytes_than_were_announced) {
  Members members(2);
  auto sent = pattern(100, 0);
  std::vector<std::byte> got(60);
  members[0].flow().start(1, Relay::chain(members[0].link(), 0, sent));
  members[1].flow().start(1, Relay::chain(members[1].link(), 0, got));
  members.deliver_all();
  ASSERT_TRUE(members[1].flow().overrun());
  EXPECT_EQ(members[1].flow().overrun()->member, 0);
  EXPECT_EQ(members[1].flow().overrun()->expected, 60U);
  EXPECT_EQ(members[1].flow().overrun()->got, 100U);
}

}  // namespace
}  // namespace crossrank::test::payload_flow_test
