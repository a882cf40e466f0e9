#include <gtest/gtest.h>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/spawn_rank.hpp"

namespace crossrank::test {
namespace {

class FakeConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(FakeConformance, holds) {
  ConnectOptions const options{.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()};
  run_conformance_case(GetParam().test, {connect(options), options});
}

TEST(Fake, refuses_to_wait_for_a_message_that_was_not_sent) {
  auto const world = connect({.backend = "fake", .rank = 0, .world_size = 1, .job_id = random_job_id()});
  auto tensor = Tensor::scalar<std::int32_t>(0);
  auto const info = error_of<UsageError>([&] { world.recv(tensor, 0); });
  EXPECT_EQ(info.operation, "recv");
  EXPECT_EQ(info.hint, "send before receiving, or start more ranks");
}

INSTANTIATE_TEST_SUITE_P(Case, FakeConformance, testing::ValuesIn(conformance_parameters({1})),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
