#include "tests/collectives/conformance/operation_table.hpp"

#include <gtest/gtest.h>

#include "tests/support/message_ranks.hpp"
#include "tests/support/spawn_rank.hpp"

/// docs/BACKENDS.md says how each backend runs each operation. These tests run the operations and compare.
namespace crossrank::test {
namespace {

TEST(OperationTable, matches_the_fake_backend) {
  auto const world = connect({.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()});
  EXPECT_EQ(measure_op_support(world), documented_ways("fake"));
}

TEST(OperationTable, matches_the_shm_backend) {
  run_thread_ranks(2, [](Collective const& world) {
    EXPECT_EQ(world.backend(), "shm");
    EXPECT_EQ(measure_op_support(world), documented_ways("shm"));
  });
}

/// The MPI plugin has the same transport, over MPI's messages instead of messages between threads.
TEST(OperationTable, matches_the_message_transport) {
  run_message_ranks(
      3, [](Collective const& world, MemoryHub&) { EXPECT_EQ(measure_op_support(world), documented_ways("mpi")); });
}

TEST(OperationTable, matches_the_composite_backend) {
  run_message_ranks(4,
                    [](Collective const& world, MemoryHub&) {
                      EXPECT_EQ(world.backend(), "composite");
                      EXPECT_EQ(measure_op_support(world), documented_ways("composite"));
                    },
                    {.node_memory = true});
}

TEST(OperationTable, has_no_column_for_an_unknown_backend) { EXPECT_TRUE(documented_ways("carrier pigeons").empty()); }

}  // namespace
}  // namespace crossrank::test
