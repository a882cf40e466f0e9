#include <latch>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/workspace/filled_tensor.hpp"
#include "workspace/shared_memory/arena_state_store.hpp"

namespace crossrank {
namespace {

using test::all_bytes_are;
using test::filled;
using test::mebi;
using test::run_thread_ranks;

TEST(SharedMemoryWorkspace, passes_states_without_a_barrier) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace workspace(world);
    auto const peer = 1 - world.rank();
    EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(peer).has_value());
    world.barrier();
    for (int round = 0; round < 3; ++round) {
      workspace.write_configs_and_weights({{"round", round}},
                                          {{"w", filled(Tensor::empty({300}, Dtype::u8), world.rank() + round)}});
      world.barrier();
      for (int again = 0; again < 2; ++again) {
        auto const state = workspace.read_configs_and_weights_from_rank(peer);
        ASSERT_TRUE(state.has_value());
        EXPECT_EQ(state->config.at("round"), round);
        EXPECT_TRUE(all_bytes_are(state->weights.at("w"), peer + round));
      }
      EXPECT_TRUE(workspace.read_configs_and_weights_from_rank(world.rank()).has_value());
      world.barrier();
    }
    workspace.clean();
    world.barrier();
    EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(peer).has_value());
    EXPECT_THROW(static_cast<void>(workspace.read_configs_and_weights_from_rank(7)), UsageError);
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, keeps_a_read_state_when_the_next_one_is_written) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace workspace(world);
    if (world.rank() == 1)
      workspace.write_configs_and_weights(nullptr, {{"w", filled(Tensor::empty({5000}, Dtype::u8), 1)}});
    world.barrier();
    auto const old = workspace.read_configs_and_weights_from_rank(1);
    world.barrier();
    for (int i = 0; i < 5; ++i) {
      if (world.rank() == 1)
        workspace.write_configs_and_weights(nullptr, {{"w", filled(Tensor::empty({5000}, Dtype::u8), 2)}});
    }
    world.barrier();
    EXPECT_TRUE(all_bytes_are(old->weights.at("w"), 1));
    EXPECT_TRUE(all_bytes_are(workspace.read_configs_and_weights_from_rank(1)->weights.at("w"), 2));
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, returns_free_memory) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace const workspace(world);
    static_cast<void>(workspace.trim());
    {
      auto const tensor = workspace.zeros({mebi}, Dtype::u8);
      EXPECT_EQ(workspace.trim(), 0U);
    }
    EXPECT_GE(workspace.trim(), as_size(mebi));
    EXPECT_EQ(workspace.trim(), 0U);
  });
}

void publish(SharedMemoryWorkspace& workspace, int value) {
  workspace.write_configs_and_weights({{"value", value}}, {{"w", filled(Tensor::empty({300}, Dtype::u8), value)}});
}

void expect_published(SharedMemoryWorkspace const& workspace, int rank, int value) {
  auto const state = workspace.read_configs_and_weights_from_rank(rank);
  ASSERT_TRUE(state.has_value()) << "the state of rank " << rank << " is lost";
  EXPECT_EQ(state->config.at("value"), value);
  EXPECT_TRUE(all_bytes_are(state->weights.at("w"), value));
}

TEST(SharedMemoryWorkspace, keeps_a_state_whose_writer_dropped_its_handle) {
  run_thread_ranks(2, [](Collective const& world) {
    std::optional<SharedMemoryWorkspace> workspace(world);
    auto const in_arena = filled(workspace->empty({5000}, Dtype::u8), 9);
    publish(*workspace, world.rank() + 1);
    if (world.rank() == 1) workspace.reset();
    world.barrier();
    if (world.rank() == 0) expect_published(*workspace, 1, 2);
    world.barrier();
    // A later handle of the same rank replaces the state and frees the memory of the previous one.
    if (!workspace) workspace.emplace(world);
    for (int i = 0; i < 20; ++i) publish(*workspace, 10 + world.rank());
    world.barrier();
    expect_published(*workspace, 1 - world.rank(), 11 - world.rank());
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, keeps_arena_backed_tensors_that_only_the_state_holds) {
  run_thread_ranks(2, [](Collective const& world) {
    {
      SharedMemoryWorkspace workspace(world);
      auto const mine = filled(workspace.empty({mebi}, Dtype::u8), 20 + world.rank());
      workspace.write_configs_and_weights(nullptr, {{"w", mine}});
    }
    // The next allocation must not get that memory.
    SharedMemoryWorkspace const workspace(world);
    auto const other = filled(workspace.empty({mebi}, Dtype::u8), 99);
    world.barrier();
    auto const state = workspace.read_configs_and_weights_from_rank(1 - world.rank());
    ASSERT_TRUE(state.has_value());
    EXPECT_TRUE(all_bytes_are(state->weights.at("w"), 21 - world.rank()));
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, keeps_a_state_whose_writer_left_the_job) {
  std::latch left(1);
  run_thread_ranks(3, [&](Collective const& world) {
    std::optional<Collective> mine(world);
    std::optional<SharedMemoryWorkspace> workspace(world);
    publish(*workspace, world.rank() + 1);
    world.barrier();
    if (world.rank() == 1) {
      mine->close();
      workspace.reset();
      left.count_down();
      return;
    }
    mine->close();
    left.wait();
    expect_published(*workspace, 1, 2);
  });
}

TEST(SharedMemoryWorkspace, returns_the_memory_of_a_kept_state) {
  run_thread_ranks(2, [](Collective const& world) {
    {
      SharedMemoryWorkspace workspace(world);
      workspace.write_configs_and_weights(nullptr, {{"w", Tensor::zeros({4 * mebi}, Dtype::u8)}});
    }
    world.barrier();
    SharedMemoryWorkspace workspace(world);
    static_cast<void>(workspace.trim());
    workspace.clean();
    EXPECT_GE(workspace.trim(), as_size(4 * mebi));
    world.barrier();
    EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(1 - world.rank()).has_value());
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, refuses_a_record_that_points_outside_the_arena) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace workspace(world);
    publish(workspace, 5);
    world.barrier();
    if (world.rank() == 0) {
      auto& record = workspace.store()->comm()->record(1);
      for (auto const bytes : {std::uint64_t{0}, ~std::uint64_t{0}}) {
        record.state_bytes.store(bytes);
        EXPECT_THROW(static_cast<void>(workspace.read_configs_and_weights_from_rank(1)), FormatError) << bytes;
      }
    }
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, reports_when_this_rank_holds_too_many_views_of_a_state) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace workspace(world);
    publish(workspace, 5);
    world.barrier();
    std::vector<RankState> held;
    std::string text;
    for (int i = 0; i < 5000 && text.empty(); ++i) {
      try {
        held.push_back(workspace.read_configs_and_weights_from_rank(1 - world.rank()).value());
      } catch (UsageError const& error) {
        text = error.what();
      }
    }
    EXPECT_THAT(text, testing::HasSubstr("4095"));
    held.clear();
    expect_published(workspace, 1 - world.rank(), 5);
    world.barrier();
  });
}

TEST(SharedMemoryWorkspace, works_in_a_group_of_one_rank) {
  auto const alone = connect({.backend = "fake", .rank = 0, .world_size = 1, .job_id = "alone"});
  {
    SharedMemoryWorkspace workspace(alone);
    EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(0).has_value());
    auto const mine = filled(workspace.empty({mebi}, Dtype::u8), 3);
    workspace.write_configs_and_weights({{"value", 3}}, {{"w", mine}});
    auto const state = workspace.read_configs_and_weights_from_rank(0);
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(state->weights.at("w").data(), mine.data()) << "no copy";
    EXPECT_THROW(static_cast<void>(workspace.read_configs_and_weights_from_rank(1)), UsageError);
    auto gathered = get_tensors_parallel(mine, alone, {.workspace = workspace}).take();
    EXPECT_EQ(gathered.at(0).data(), mine.data());
  }
  SharedMemoryWorkspace workspace(alone);
  expect_published(workspace, 0, 3);
  workspace.clean();
  EXPECT_FALSE(workspace.read_configs_and_weights_from_rank(0).has_value());
}

TEST(SharedMemoryWorkspace, refuses_calls_when_default_constructed) {
  SharedMemoryWorkspace const none;
  EXPECT_FALSE(none.is_initialized());
  EXPECT_THROW(static_cast<void>(none.empty({1}, Dtype::u8)), UsageError);
}

}  // namespace
}  // namespace crossrank
