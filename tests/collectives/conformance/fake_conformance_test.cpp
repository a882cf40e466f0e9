#include <gtest/gtest.h>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/support/spawn_rank.hpp"

namespace crossrank::test {
namespace {

class FakeConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(FakeConformance, holds) {
  ConnectOptions const options{.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()};
  run_conformance_case(GetParam().test, {connect(options), options});
}

INSTANTIATE_TEST_SUITE_P(Case, FakeConformance, testing::ValuesIn(conformance_parameters({1})),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
