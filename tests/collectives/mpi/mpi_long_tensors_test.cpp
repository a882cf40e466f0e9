#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>

#include "tests/collectives/stress/long_tensors.hpp"

/// Run by mpirun.
namespace crossrank::test {
namespace {

/// The ranks look at the machine together: one that finds memory where the other found none would wait for it.
TEST(MpiLongTensors, pass_between_ranks) {
  auto world = connect({.backend = "mpi"});
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
