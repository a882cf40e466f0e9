// Which rank writes which file, and how many bytes go from which rank to which in each round.
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/checkpoint/memory/exchange/transfer_schedule.hpp"
#include "workspace/checkpoint/memory/export_plan.hpp"
#include "workspace/checkpoint/memory/file_owners.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::transfer_schedule_test {
namespace {

using checkpoint::TransferSchedule;

constexpr int ranks = 4;
constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

/// The output files of an export and the schedule of their bytes, as one rank computes them.
struct Planned {
  checkpoint::ExportPlan plan{};
  std::vector<checkpoint::OutputFile> files{};

  Planned(Collective const& world, StateDict const& weights, checkpoint::Placements const& placements,
          std::uint64_t max_file_bytes)
      : plan(checkpoint::plan_export(world, weights, placements, {}, "test")),
        files(checkpoint::lay_out_model(std::make_shared<checkpoint::MergedSource>(plan.layout),
                                        {.max_file_bytes = max_file_bytes, .ranks = world.world_size()})) {
    checkpoint::assign_owners_by_bytes(files, *plan.layout, plan.cells);
  }

  [[nodiscard]] TransferSchedule schedule() const {
    auto const layout = plan.layout;
    return {plan.cells, checkpoint::units_of(files, ranks), [layout](int, checkpoint::WorkUnit const& unit) {
              return checkpoint::inputs_of(*layout, unit.tensor, unit.offset, unit.bytes);
            }};
  }

  /// Returns the bytes of the files that each rank writes.
  [[nodiscard]] std::vector<std::uint64_t> written() const {
    std::vector<std::uint64_t> bytes(ranks);
    for (auto const& file : files) bytes.at(as_size(file.owner)) += file.bytes;
    return bytes;
  }
};

/// The bytes that one rank sends and receives in all rounds.
struct Traffic {
  std::vector<std::vector<std::int64_t>> sent{};      ///< to each rank, by round
  std::vector<std::vector<std::int64_t>> received{};  ///< from each rank, by round
  bool sends_a_byte_twice = false;
};

Traffic traffic_of(TransferSchedule schedule) {
  Traffic traffic;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>> sent;  // cell, tensor and mebibyte of the tensor
  while (!schedule.over()) {
    auto const round = schedule.next();
    for (auto const& one : round.sent) {
      for (auto at = one.item.first; at < one.item.last; at += mebibyte) {
        if (!sent.emplace(one.item.cell, one.item.tensor, at).second) traffic.sends_a_byte_twice = true;
      }
    }
    traffic.sent.push_back(round.send_bytes);
    traffic.received.push_back(round.receive_bytes);
  }
  return traffic;
}

std::int64_t sum(std::vector<std::int64_t> const& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::int64_t sum(std::vector<std::vector<std::int64_t>> const& rounds) {
  std::int64_t all = 0;
  for (auto const& round : rounds) all += sum(round);
  return all;
}

TEST(TransferSchedule, sends_each_byte_once_and_at_most_24_MiB_in_a_round) {
  // Each rank has a quarter of each of eight tensors, and writes two of them.
  constexpr int tensors = 8;
  std::vector<Traffic> of_rank(ranks);
  test::run_thread_ranks(ranks, [&](Collective const& world) {
    StateDict weights;
    for (int i = 0; i < tensors; ++i) weights.insert("w" + std::to_string(i), Tensor::empty({5 * mebibyte}, Dtype::u8));
    Planned const planned(world, weights, {.otherwise = {.placements = {checkpoint::Shard{0}}}},
                          static_cast<std::uint64_t>(20 * mebibyte));
    EXPECT_EQ(planned.files.size(), as_size(tensors));
    of_rank.at(as_size(world.rank())) = traffic_of(planned.schedule());
  });
  std::int64_t all_sent = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    auto const& own = of_rank[rank];
    EXPECT_FALSE(own.sends_a_byte_twice);
    // A rank writes 40 MiB and has a quarter of them.
    EXPECT_EQ(sum(own.received), 30 * mebibyte);
    EXPECT_GT(own.sent.size(), 1U);
    all_sent += sum(own.sent);
    for (std::size_t round = 0; round < own.sent.size(); ++round) {
      EXPECT_LE(sum(own.sent[round]), 24 * mebibyte);
      EXPECT_LE(sum(own.received[round]), 24 * mebibyte);
      EXPECT_EQ(own.sent[round][rank], 0);
      for (std::size_t peer = 0; peer < ranks; ++peer)
        EXPECT_EQ(own.sent[round][peer], of_rank[peer].received.at(round)[rank]) << "the ranks disagree";
    }
  }
  EXPECT_EQ(all_sent, ranks * 30 * mebibyte);
}

TEST(TransferSchedule, lets_ranks_write_the_files_that_they_hold) {
  test::run_thread_ranks(ranks, [](Collective const& world) {
    // Stage 0 has the last rank, so that the order of the ranks tells nothing.
    int const stage = ranks - 1 - world.rank();
    StateDict weights;
    for (int i = 0; i < 3; ++i)
      weights.insert("s" + std::to_string(stage) + "." + std::to_string(i), Tensor::zeros({1000}, Dtype::u8));

    Planned const planned(world, weights, {.pp_rank = stage, .pp = ranks}, 3000);

    ASSERT_EQ(planned.files.size(), as_size(ranks));
    for (int i = 0; i < ranks; ++i) EXPECT_EQ(planned.files.at(as_size(i)).owner, ranks - 1 - i);
    EXPECT_EQ(sum(traffic_of(planned.schedule()).sent), 0);
  });
}

TEST(TransferSchedule, divides_the_files_although_one_rank_holds_all_bytes) {
  test::run_thread_ranks(ranks, [](Collective const& world) {
    StateDict weights;
    for (int i = 0; world.rank() == 2 && i < 8; ++i)
      weights.insert("w" + std::to_string(i), Tensor::zeros({1000}, Dtype::u8));

    Planned const planned(world, weights, {}, 1000);

    auto const written = planned.written();
    EXPECT_THAT(written, testing::Each(written.front()));
    EXPECT_EQ(sum(traffic_of(planned.schedule()).sent), world.rank() == 2 ? 6000 : 0);
  });
}

}  // namespace
}  // namespace crossrank::transfer_schedule_test
