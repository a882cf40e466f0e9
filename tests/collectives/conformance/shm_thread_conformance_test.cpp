#include <gtest/gtest.h>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {
namespace {

class ShmThreadConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(ShmThreadConformance, holds) {
  ThreadRankOptions const options{.job_id = random_job_id()};
  auto const& parameter = GetParam();
  run_thread_ranks(
      parameter.ranks,
      [&](Collective const& world) {
        run_conformance_case(parameter.test, {world, thread_options(world.rank(), world.world_size(), options)});
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Case, ShmThreadConformance, testing::ValuesIn(conformance_parameters({1, 2, 3, 4, 8})),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
