#include <gtest/gtest.h>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank::test {
namespace {

CROSSRANK_RANK_SCENARIO(conformance) {
  ConnectOptions const options{.backend = "shm",
                               .timeout = std::chrono::minutes(5),
                               .job_id = std::getenv("CROSSRANK_JOB_ID"),
                               .arena_cap = std::uint64_t{64} << 20};
  run_conformance_case(find_conformance_case(self.arguments.at(0)), {connect(options), options});
  return 0;
}

class ShmProcessConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(ShmProcessConformance, holds) {
  auto const& parameter = GetParam();
  auto const job = run_ranks(parameter.ranks, "conformance", {.arguments = {std::string(parameter.test.name)}});
  EXPECT_TRUE(job.ok()) << job.text();
}

INSTANTIATE_TEST_SUITE_P(Case, ShmProcessConformance, testing::ValuesIn(conformance_parameters({1, 3, 8})),
                         [](auto const& one) { return parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
