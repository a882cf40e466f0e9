#pragma once
#include <string_view>

#include <gtest/gtest.h>

#include <crossrank/collective.hpp>

#include "tests/support/process_ranks.hpp"

namespace crossrank::test {

/// The body of a scenario: connects, calls `body` and leaves the group in order. Returns the exit code.
template <class Body>
int run_connected(Body const& body) {
  auto world = connect();
  body(world);
  world.close();
  return 0;
}

/// Runs a scenario as `ranks` processes and expects that all of them succeed.
inline void expect_success(int ranks, std::string_view scenario) {
  auto const job = run_ranks(ranks, scenario);
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace crossrank::test
