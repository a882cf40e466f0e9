#include <cstdlib>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"
#include "tests/collectives/conformance/operation_table.hpp"

/// Run by mpirun: every rank runs the same cases. CROSSRANK_TEST_BACKEND chooses the backend.
namespace crossrank::test::mpi_conformance_test {
namespace {

std::string text_of_variable(char const* name, std::string otherwise) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? std::move(otherwise) : text;
}

int launched_ranks() { return std::stoi(text_of_variable("OMPI_COMM_WORLD_SIZE", "1")); }

std::vector<ConformanceParameter> cases() {
  // The ranks may be on several nodes. After a timeout, MPI is not finalized, because that could wait forever.
  static std::set<std::string_view> const apart{"the_world_knows_its_ranks",
                                                "recv_any_times_out_when_no_rank_makes_progress",
                                                "repeated_waits_time_out_together",
                                                "a_call_can_have_a_shorter_timeout_than_its_group",
                                                "a_failed_close_keeps_what_peers_read",
                                                "waiting_for_a_message_of_its_own_is_an_error"};
  auto all = conformance_parameters({launched_ranks()});
  std::erase_if(all, [](auto const& one) { return apart.contains(one.test.name); });
  return all;
}

class MpiConformance : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(MpiConformance, holds) {
  ConnectOptions const options{.backend = text_of_variable("CROSSRANK_TEST_BACKEND", "mpi"),
                               .timeout = std::chrono::minutes(5),
                               .connect_timeout = std::chrono::minutes(5),
                               .job_id = std::string(GetParam().test.name),
                               .arena_cap = std::uint64_t{64} << 20};
  auto const world = connect(options);
  EXPECT_EQ(world.backend(), options.backend);
  EXPECT_EQ(world.world_size(), launched_ranks());
  run_conformance_case(GetParam().test, {world, options});
}

class MpiGroup : public testing::TestWithParam<GroupParameter> {};

TEST_P(MpiGroup, holds) {
  auto world = connect({.backend = text_of_variable("CROSSRANK_TEST_BACKEND", "mpi"),
                        .timeout = std::chrono::seconds(20),
                        .connect_timeout = std::chrono::seconds(30),
                        .job_id = "group_" + std::string(GetParam().test.name),
                        .arena_cap = std::uint64_t{256} << 20});
  GetParam().test.body(world);
  world.close();
}

TEST(MpiOperationTable, matches_this_backend) {
  ConnectOptions const options{.backend = text_of_variable("CROSSRANK_TEST_BACKEND", "mpi"),
                               .timeout = std::chrono::minutes(5),
                               .connect_timeout = std::chrono::minutes(5),
                               .job_id = "operation_table"};
  EXPECT_EQ(measure_op_support(connect(options)), documented_ways(options.backend));
}

INSTANTIATE_TEST_SUITE_P(Case, MpiConformance, testing::ValuesIn(cases()),
                         [](auto const& one) { return parameter_name(one.param); });
INSTANTIATE_TEST_SUITE_P(Case, MpiGroup, testing::ValuesIn(group_parameters({launched_ranks()})),
                         [](auto const& one) { return group_parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test::mpi_conformance_test
