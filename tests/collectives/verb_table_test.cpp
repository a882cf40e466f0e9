#include "tests/collectives/verb_table.hpp"

#include <gtest/gtest.h>

#include "tests/support/message_ranks.hpp"
#include "tests/support/spawn_rank.hpp"

/// The README says what each backend does; here each of them does it.
namespace crossrank::test {
namespace {

TEST(VerbTable, is_right_about_fake) {
  auto const world = connect({.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()});
  EXPECT_EQ(ways_of_verbs(world), ways_in_readme("fake"));
}

TEST(VerbTable, is_right_about_shm) {
  run_thread_ranks(2, [](Collective const& world) {
    EXPECT_EQ(world.backend(), "shm");
    EXPECT_EQ(ways_of_verbs(world), ways_in_readme("shm"));
  });
}

/// The plugin has the same transport, over MPI's messages instead of those between threads.
TEST(VerbTable, is_right_about_messages_alone) {
  run_message_ranks(
      3, [](Collective const& world, MemoryHub&) { EXPECT_EQ(ways_of_verbs(world), ways_in_readme("mpi")); });
}

TEST(VerbTable, is_right_about_composite) {
  run_message_ranks(4,
                    [](Collective const& world, MemoryHub&) {
                      EXPECT_EQ(world.backend(), "composite");
                      EXPECT_EQ(ways_of_verbs(world), ways_in_readme("composite"));
                    },
                    {.node_memory = true});
}

TEST(VerbTable, has_no_column_for_what_does_not_exist) { EXPECT_TRUE(ways_in_readme("carrier pigeons").empty()); }

}  // namespace
}  // namespace crossrank::test
