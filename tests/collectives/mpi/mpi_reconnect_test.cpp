#include <filesystem>
#include <iterator>

#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/mpi.hpp>

#include "tests/support/timeouts.hpp"

/// A program that owns MPI connects its communicators again and again.
namespace crossrank::test {
namespace {

constexpr int loops = 20;

std::ptrdiff_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

void connect_and_close(MPI_Comm communicator) {
  auto group = mpi::connect(communicator, {.backend = "mpi", .timeout = step_timeout});
  EXPECT_EQ(group.all_reduce_value(1), group.world_size());
  group.close();
}

/// Connects a copy of the communicator and returns its handle as a number.
MPI_Fint connect_copy(MPI_Comm communicator) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(communicator, &copy);
  auto const handle = MPI_Comm_c2f(copy);
  connect_and_close(copy);
  MPI_Comm_free(&copy);
  return handle;
}

/// The group is closed after the program has freed its communicator.
void free_before_close(MPI_Comm communicator) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(communicator, &copy);
  auto group = mpi::connect(copy, {.backend = "mpi", .timeout = step_timeout});
  MPI_Comm_free(&copy);
  EXPECT_EQ(group.all_reduce_value(1), group.world_size());
  group.close();
}

TEST(MpiReconnect, ends_the_network_of_a_communicator_with_it) {
  int provided = 0;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  connect_and_close(MPI_COMM_WORLD);
  auto const threads = thread_count();
  auto const handle = connect_copy(MPI_COMM_WORLD);
  for (int i = 0; i < loops; ++i) {
    connect_and_close(MPI_COMM_WORLD);
    free_before_close(MPI_COMM_WORLD);
    // MPI reuses the handles of freed communicators. The library may free its duplicates in a later call.
    EXPECT_LT(connect_copy(MPI_COMM_WORLD), handle + loops);
  }
  EXPECT_LE(thread_count(), threads + 1);
  ASSERT_EQ(MPI_Finalize(), MPI_SUCCESS);
}

}  // namespace
}  // namespace crossrank::test
