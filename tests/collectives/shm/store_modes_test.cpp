#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include <crossrank/collective.hpp>

#include "lib/core/as_size.hpp"
#include "lib/node/memory/store_autotuner.hpp"
#include "tests/support/thread_ranks.hpp"

/// Staged bytes and results are written with normal and with streaming stores. The data are the same at every
/// alignment.
namespace crossrank::test {
namespace {

/// Enough calls for each store mode to be used several times.
constexpr int rounds = node::StoreAutotuner::first_steps + node::StoreAutotuner::trial_steps + 8;

std::uint8_t value_of(std::size_t index, int rank, int round) {
  return static_cast<std::uint8_t>(index * 7 + index / 251 + as_size(rank * 31 + round * 13));
}

Tensor bytes_of(std::size_t bytes, int rank, int round) {
  auto tensor = Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8);
  auto const values = tensor.as_mutable<std::uint8_t>();
  for (std::size_t i = 0; i < bytes; ++i) values[i] = value_of(i, rank, round);
  return tensor;
}

/// Returns whether these are the values of `rank` from `begin` on.
bool holds(std::span<std::uint8_t const> values, std::size_t begin, int rank, int round) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != value_of(begin + i, rank, round)) return false;
  }
  return true;
}

void move_all(Collective const& world, std::size_t part, int round) {
  auto const ranks = as_size(world.world_size());
  auto all = Tensor::empty({static_cast<std::int64_t>(ranks * part)}, Dtype::u8);
  auto const part_of = [&](int rank) {
    return std::as_const(all).as<std::uint8_t>().subspan(as_size(rank) * part, part);
  };
  world.all_gather(all, bytes_of(part, world.rank(), round));
  for (int rank = 0; rank < world.world_size(); ++rank) ASSERT_TRUE(holds(part_of(rank), 0, rank, round)) << "gather";
  world.all_to_all(all, bytes_of(ranks * part, world.rank(), round));
  auto const begin = as_size(world.rank()) * part;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    ASSERT_TRUE(holds(part_of(rank), begin, rank, round)) << "all_to_all, of rank " << rank;
  }
}

/// Returns whether these are the sums modulo 256.
bool is_sum(std::span<std::uint8_t const> values, std::size_t begin, int ranks, int round) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    unsigned sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value_of(begin + i, rank, round);
    if (values[i] != static_cast<std::uint8_t>(sum)) return false;
  }
  return true;
}

void reduce_all(Collective const& world, std::size_t part, int round) {
  auto const ranks = as_size(world.world_size());
  auto tensor = bytes_of(ranks * part, world.rank(), round);
  auto mine = Tensor::empty({static_cast<std::int64_t>(part)}, Dtype::u8);
  world.reduce_scatter(mine, tensor);
  auto const begin = as_size(world.rank()) * part;
  ASSERT_TRUE(is_sum(mine.as<std::uint8_t>(), begin, world.world_size(), round)) << "reduce_scatter";
  world.all_reduce(tensor);
  ASSERT_TRUE(is_sum(tensor.as<std::uint8_t>(), 0, world.world_size(), round)) << "all_reduce";
}

class StoreModes : public testing::TestWithParam<std::size_t> {
 protected:
  /// Runs `calls` with parts of the parameter's length, round by round, for several numbers of ranks.
  static void run(void (*calls)(Collective const& world, std::size_t part, int round)) {
    for (int const ranks : {2, 3}) {
      run_thread_ranks(ranks, [&](Collective world) {
        for (int round = 0; round < rounds; ++round) ASSERT_NO_FATAL_FAILURE(calls(world, GetParam(), round));
        world.close();
      });
    }
  }
};

TEST_P(StoreModes, move_data_unchanged) { run(move_all); }
TEST_P(StoreModes, reduce_data_correctly) { run(reduce_all); }

INSTANTIATE_TEST_SUITE_P(Bytes, StoreModes, testing::Values(20'001, 600'000, 600'077));

/// Results larger than any cache, in few calls of many steps each.
TEST(StoreModesOfLongResults, move_and_reduce_more_than_a_cache_holds) {
  run_thread_ranks(2, [&](Collective world) {
    for (int round = 0; round < 2; ++round) {
      ASSERT_NO_FATAL_FAILURE(move_all(world, 9'000'001, round));
      ASSERT_NO_FATAL_FAILURE(reduce_all(world, 9'000'001, round));
    }
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test
