#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <gtest/gtest.h>

#include <crossrank/workspace/shared_memory_workspace.hpp>
#include <crossrank/statistics.hpp>

#include "collectives/shm/staged_collective.hpp"
#include "lib/core/as_size.hpp"
#include "tests/support/thread_ranks.hpp"

/// Tensors in an arena: in long collectives the peers read them in place.
namespace crossrank::test {
namespace {

constexpr std::int64_t whole_pieces = 3;
constexpr std::int64_t rest = 4096;
constexpr std::int64_t length = whole_pieces * static_cast<std::int64_t>(shm::step_bytes) + rest;

// Runs of this many equal bytes: different in each piece, and quick to make and to compare.
constexpr std::size_t alike = 4096;
static_assert(length % alike == 0);

int value_of(int rank, int round, std::size_t block) { return (rank * 31 + round * 7 + static_cast<int>(block)) % 251; }

void fill(Tensor& tensor, int rank, int round) {
  auto const bytes = tensor.mutable_bytes();
  for (std::size_t at = 0; at < bytes.size(); at += alike)
    std::memset(&bytes[at], value_of(rank, round, at / alike), alike);
}

bool holds(std::span<std::byte const> bytes, int rank, int round) {
  std::array<std::byte, alike> wanted{};
  for (std::size_t at = 0; at < bytes.size(); at += alike) {
    std::memset(wanted.data(), value_of(rank, round, at / alike), alike);
    if (std::memcmp(&bytes[at], wanted.data(), alike) != 0) return false;
  }
  return true;
}

/// Each rank overwrites its tensor as soon as the call has returned. No other rank may still be reading it then.
void gather_and_broadcast(Collective const& world, Tensor mine) {
  auto const part = as_size(length);
  auto all = Tensor::empty({world.world_size(), length}, Dtype::u8);
  for (int round = 0; round < 4; ++round) {
    fill(mine, world.rank(), round);
    world.all_gather(all, mine);
    fill(mine, world.rank(), round + 100);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      ASSERT_TRUE(holds(all.bytes().subspan(as_size(rank) * part, part), rank, round))
          << "rank " << rank << ", round " << round;
    }
    int const root = round % world.world_size();
    world.broadcast(mine, {root});
    ASSERT_TRUE(holds(mine.bytes(), root, round + 100)) << "round " << round;
  }
}

TEST(ZeroCopyPieces, arrive_intact_and_may_be_overwritten_afterwards) {
  for (int const ranks : {2, 3}) {
    for (int const exposers : {0b111, 0b001, 0b010}) {
      run_thread_ranks(ranks,
                       [&](Collective world) {
                         SharedMemoryWorkspace const workspace(world);
                         bool const exposes = (exposers >> world.rank() & 1) != 0;
                         gather_and_broadcast(world, exposes ? workspace.empty({length}, Dtype::u8)
                                                             : Tensor::empty({length}, Dtype::u8));
                         world.close();
                       },
                       {.arena_cap = std::uint64_t{256} << 20});
    }
  }
}

TEST(ZeroCopyPieces, are_not_copied_by_the_sender) {
  run_thread_ranks(2,
                   [](Collective world) {
                     SharedMemoryWorkspace const workspace(world);
                     auto const exposed = workspace.zeros({length}, Dtype::u8);
                     auto const heap = Tensor::zeros({length}, Dtype::u8);
                     auto all = Tensor::empty({2, length}, Dtype::u8);
                     auto const copied_for = [&](Tensor const& mine) {
                       world.barrier();
                       auto const before = statistics().bytes_copied;
                       world.barrier();
                       world.all_gather(all, mine);
                       world.barrier();
                       auto const after = statistics().bytes_copied;
                       world.barrier();
                       return after - before;
                     };
                     auto const usual = copied_for(heap);
                     EXPECT_EQ(usual - copied_for(exposed), 2 * static_cast<std::uint64_t>(length - rest));
                     world.close();
                   },
                   {.arena_cap = std::uint64_t{256} << 20});
}

}  // namespace
}  // namespace crossrank::test
