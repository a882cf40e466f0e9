#include "collectives/message/rounds.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/message/members.hpp"

namespace crossrank::test {
namespace {

using message::flag_broadcast;
using message::flag_data;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr spi::Signature gather{.op_kind = spi::OpKind::all_gatherv, .digest = 5};

TEST(Rounds, pass_once_all_members_have_arrived) {
  Members members(3);
  for (int rank : {2, 0}) members[rank].arrive({.op_kind = spi::OpKind::barrier}, {});
  members.deliver_all();
  EXPECT_FALSE(members[0].passed_round);
  EXPECT_THAT(members[0].rounds().missing(), ElementsAre(1));
  members[1].arrive({.op_kind = spi::OpKind::barrier}, {});
  members.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(members[rank].passed_round) << rank;
    EXPECT_EQ(members[rank].rounds().passed(), 1U);
    EXPECT_TRUE(members[rank].passed_round->sizes.empty());
  }
}

TEST(Rounds, carry_small_payloads_of_all_members_in_rank_order) {
  Members members(3);
  std::vector<std::byte> all;
  std::vector<std::vector<std::byte>> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back(pattern(as_size(10 * rank), rank));
    all.insert(all.end(), parts.back().begin(), parts.back().end());
  }
  for (int rank = 2; rank >= 0; --rank)
    members[rank].arrive(gather, {.bytes = at_rank(parts, rank), .flags = flag_data});
  members.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(members[rank].passed_round->whole);
    EXPECT_THAT(members[rank].passed_round->sizes, ElementsAre(0, 10, 20));
    EXPECT_EQ(members[rank].passed_round->storage, all);
  }
}

TEST(Rounds, announce_only_sizes_when_a_payload_is_large) {
  Members members(2);
  auto const large = pattern(message::small_payload + 1, 0);
  members[0].arrive(gather, {.bytes = large, .flags = flag_data});
  members[1].arrive(gather, {.bytes = std::span(large).first(4), .flags = flag_data});
  members.deliver_all();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(members[rank].passed_round->whole);
    EXPECT_THAT(members[rank].passed_round->sizes, ElementsAre(large.size(), 4));
    EXPECT_TRUE(members[rank].passed_round->storage.empty());
  }
}

TEST(Rounds, take_only_the_payload_of_the_root_in_a_broadcast) {
  Members members(3);
  auto const bytes = pattern(30, 1);
  for (int rank = 0; rank < 3; ++rank) {
    members[rank].arrive({.op_kind = spi::OpKind::broadcast},
                         {.bytes = rank == 1 ? message::Bytes(bytes) : message::Bytes(),
                          .flags = flag_data | flag_broadcast,
                          .root = 1});
  }
  members.deliver_all();
  EXPECT_THAT(members[2].passed_round->sizes, ElementsAre(30));
  EXPECT_EQ(members[2].passed_round->storage, bytes);
}

TEST(Rounds, compare_an_exchange_at_the_first_member_and_answer_without_the_table) {
  constexpr int ranks = 3;
  Members members(ranks);
  std::vector<std::vector<std::uint64_t>> rows{{0, 5, 6, 0, 0, 9}, {0, 0, 0, 5, 0, 0}, {9, 0, 0, 6, 0, 0}};
  auto const run = [&] {
    for (int rank = 0; rank < ranks; ++rank) {
      members[rank].arrive({.op_kind = spi::OpKind::all_to_allv},
                           {.bytes = std::as_bytes(std::span(at_rank(rows, rank))), .flags = message::flag_exchange});
    }
    members.deliver_all();
  };
  run();
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(members[rank].passed_round->whole);
    EXPECT_TRUE(members[rank].passed_round->storage.empty());
    EXPECT_TRUE(members[rank].passed_round->sizes.empty());
  }
  rows[1][3] = 4;  // expects 4 bytes of rank 0, which sends 5
  run();
  for (int rank = 0; rank < ranks; ++rank) {
    algorithms::ExchangeMismatch differs;
    ASSERT_EQ(members[rank].passed_round->storage.size(), sizeof differs);
    std::memcpy(&differs, members[rank].passed_round->storage.data(), sizeof differs);
    EXPECT_EQ((std::array{differs.from, differs.to, differs.sent, differs.expected}),
              (std::array<std::uint64_t, 4>{0, 1, 5, 4}));
  }
}

TEST(Rounds, tell_all_members_that_one_of_them_has_no_shortcut) {
  Members members(3);
  std::vector<std::uint64_t> const row(6);
  for (int rank = 0; rank < 3; ++rank) {
    members[rank].arrive({.op_kind = spi::OpKind::all_to_allv},
                         {.bytes = std::as_bytes(std::span(row)),
                          .flags = message::flag_exchange | (rank == 1 ? message::flag_no_shortcut : 0U)});
  }
  members.deliver_all();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(members[rank].passed_round->flags, message::flag_no_shortcut);
}

TEST(Rounds, name_the_rarest_call_when_members_disagree) {
  Members members(4);
  for (int rank : {0, 1, 3}) members[rank].arrive(gather, {});
  members[2].arrive({.op_kind = spi::OpKind::barrier}, {});
  members.deliver_all();
  ASSERT_TRUE(members[0].disagreement);
  EXPECT_THAT(members[0].disagreement->failed_ranks, ElementsAre(2));
  EXPECT_THAT(members[0].disagreement->text, HasSubstr("barrier"));
  EXPECT_FALSE(members[1].passed_round);
}

}  // namespace
}  // namespace crossrank::test
