#include <chrono>

#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "tests/collectives/stress/long_tensors.hpp"

/// Run by mpirun.
namespace crossrank::test {
namespace {

/// The ranks decide together whether there is enough memory. Otherwise one could wait for another that skips the test.
TEST(MpiLongTensors, are_moved_between_ranks) {
  auto world = connect({.backend = "mpi", .timeout = std::chrono::minutes(20)});  // a rank fills gigabytes in between
  auto reason = no_memory_for_long_tensors();
  for (auto const& of_one : world.all_gather_object(reason)) {
    if (reason.empty()) reason = of_one;
  }
  if (reason.empty()) move_long_tensors(world);
  world.close();
  if (!reason.empty()) GTEST_SKIP() << reason;
}

}  // namespace
}  // namespace crossrank::test
