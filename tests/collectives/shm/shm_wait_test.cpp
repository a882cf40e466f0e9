#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/statistics.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/await_sleeper.hpp"
#include "tests/support/thread_ranks.hpp"

/// Waking and deciding. Faults here show only by time or in a race: a sleeper that is not woken wakes by itself after a
/// tenth of a second, and an overwritten verdict is right most of the time.
namespace crossrank::test {
namespace {

using Act = void (*)(Collective const& world);
constexpr int trials = 9;

/// Returns in how many trials `act` of rank 0 has woken rank 1, which sleeps in `wait`. A sleeper also wakes by itself
/// after a while, so only the count of wake-ups shows whether it was woken. Time would show nothing on a busy machine.
int wakes_of(Act wait, Act act) {
  std::atomic<int> trial{0};
  std::atomic<int> wakes{0};
  run_thread_ranks(2, [&](Collective world) {
    for (int i = 0; i < trials; ++i) {
      world.barrier();
      if (world.rank() == 1) {
        trial = i + 1;
        wait(world);
        continue;
      }
      while (trial.load() <= i) std::this_thread::yield();
      await_sleeper(statistics().futex_waits);
      auto const before = statistics().futex_wakes;
      act(world);
      if (statistics().futex_wakes > before) ++wakes;
    }
    world.close();
  });
  return wakes;
}

Tensor& token() {
  thread_local auto tensor = Tensor::zeros({1}, Dtype::u8);
  return tensor;
}

TEST(ShmWait, ends_at_once_when_the_last_rank_arrives) {
  auto const barrier = [](Collective const& world) { world.barrier(); };
  EXPECT_EQ(wakes_of(barrier, barrier), trials);
}

TEST(ShmWait, ends_at_once_when_a_message_arrives) {
  EXPECT_EQ(wakes_of([](Collective const& world) { world.recv(token(), 0); },
                     [](Collective const& world) { world.send(token(), 1); }),
            trials);
}

TEST(ShmWait, ends_at_once_when_a_message_is_taken) {
  auto const send_nine = [](Collective const& world) {
    for (int i = 0; i < 9; ++i) world.send(token(), 0);
  };
  auto const take_nine = [](Collective const& world) {
    for (int i = 0; i < 9; ++i) world.recv(token(), 1);
  };
  EXPECT_EQ(wakes_of(send_nine, take_nine), trials);
}

TEST(ShmWait, ends_at_once_when_a_group_is_aborted_or_dropped) {
  auto const wait = [](Collective const& world) {
    auto const group = world.split_by(0);
    EXPECT_THROW(group.barrier(), PeerLostError);
  };
  EXPECT_EQ(wakes_of(wait, [](Collective const& world) { world.split_by(0).abort("now"); }), trials);
  EXPECT_EQ(wakes_of(wait, [](Collective const& world) { static_cast<void>(world.split_by(0)); }), trials);
}

/// One rank aborts the group while the last one arrives. The round passes for all of them or for none.
TEST(ShmVerdict, is_the_same_for_all_when_an_abort_races_with_the_last_arrival) {
  constexpr int ranks = 3;
  constexpr int rounds = 600;
  std::atomic<int> at_the_line{0};
  std::vector<std::array<int, ranks>> passed(rounds);
  run_thread_ranks(ranks, [&](Collective world) {
    auto const rank = as_size(world.rank());
    for (int i = 0; i < rounds; ++i) {
      auto const group = world.split_by(0);
      auto& transport = *group.transport();
      spi::RequestId request_id{};
      bool const races = rank == 1;
      if (!races) request_id = transport.post_barrier({.op_kind = spi::OpKind::barrier});
      at_the_line.fetch_add(1);
      for (int polls = 1; rank != 2 && at_the_line.load() < (i + 1) * ranks; ++polls) {
        if (polls % 4096 == 0)
          std::this_thread::yield();  // spins, so that both start together if there are enough CPUs
      }
      int const pauses = rank == 0 ? i % 64 * 4 : i / 64 % 16 * 16;
      for (int pause = 0; rank != 2 && pause < pauses; ++pause) at_the_line.load();
      if (rank == 0) group.abort("raced");
      try {
        if (races) request_id = transport.post_barrier({.op_kind = spi::OpKind::barrier});
        transport.wait(request_id, group.timeout_policy());
        passed[as_size(i)][rank] = 1;
      } catch (PeerLostError const&) {
        passed[as_size(i)][rank] = 0;
      }
    }
    world.close();
  });
  int torn = 0;
  int all = 0;
  for (auto const& round : passed) {
    auto const sum = round[0] + round[1] + round[2];
    all += sum == ranks ? 1 : 0;
    torn += sum != 0 && sum != ranks ? 1 : 0;
  }
  EXPECT_EQ(torn, 0) << all << " rounds of " << rounds << " passed";
}

}  // namespace
}  // namespace crossrank::test
