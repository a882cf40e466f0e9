#include "tests/collectives/verb_table.hpp"

#include <gtest/gtest.h>

#include "tests/support/message_ranks.hpp"
#include "tests/support/spawn_rank.hpp"

/// docs/BACKENDS.md says how each backend runs each operation; these tests run them and compare.
namespace crossrank::test {
namespace {

TEST(VerbTable, is_right_about_fake) {
  auto const world = connect({.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()});
  EXPECT_EQ(ways_of_verbs(world), documented_ways("fake"));
}

TEST(VerbTable, is_right_about_shm) {
  run_thread_ranks(2, [](Collective const& world) {
    EXPECT_EQ(world.backend(), "shm");
    EXPECT_EQ(ways_of_verbs(world), documented_ways("shm"));
  });
}

/// The plugin has the same transport, over MPI's messages instead of those between threads.
TEST(VerbTable, is_right_about_messages_alone) {
  run_message_ranks(
      3, [](Collective const& world, MemoryHub&) { EXPECT_EQ(ways_of_verbs(world), documented_ways("mpi")); });
}

TEST(VerbTable, is_right_about_composite) {
  run_message_ranks(4,
                    [](Collective const& world, MemoryHub&) {
                      EXPECT_EQ(world.backend(), "composite");
                      EXPECT_EQ(ways_of_verbs(world), documented_ways("composite"));
                    },
                    {.node_memory = true});
}

TEST(VerbTable, has_no_column_for_what_does_not_exist) { EXPECT_TRUE(documented_ways("carrier pigeons").empty()); }

}  // namespace
}  // namespace crossrank::test
