#include <gtest/gtest.h>

#include "collectives/fake/fake_transport.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

/// The coordinator on every backend that needs no launcher. The MPI backend runs the same cases in its own program.
namespace crossrank::test {
namespace {

constexpr auto capacity = std::uint64_t{256} << 20;

class GroupOnBackend : public testing::TestWithParam<GroupParameter> {};

TEST_P(GroupOnBackend, shm) { run_thread_ranks(GetParam().ranks, GetParam().test.body, {.arena_cap = capacity}); }

TEST_P(GroupOnBackend, messages) {
  run_message_ranks(GetParam().ranks, [](Collective const& world, MemoryHub&) { GetParam().test.body(world); });
}

TEST_P(GroupOnBackend, composite) {
  run_message_ranks(GetParam().ranks, [](Collective const& world, MemoryHub&) { GetParam().test.body(world); },
                    {.node_memory = true, .arena_cap = capacity});
}

INSTANTIATE_TEST_SUITE_P(Case, GroupOnBackend, testing::ValuesIn(group_parameters({1, 2, 3, 4})),
                         [](auto const& one) { return group_parameter_name(one.param); });

class GroupOnFake : public testing::TestWithParam<GroupParameter> {};

TEST_P(GroupOnFake, holds) {
  auto world = make_collective(std::make_shared<fake::FakeTransport>("world"), {});
  GetParam().test.body(world);
  world.close();
}

INSTANTIATE_TEST_SUITE_P(Case, GroupOnFake, testing::ValuesIn(group_parameters({1})),
                         [](auto const& one) { return group_parameter_name(one.param); });

}  // namespace
}  // namespace crossrank::test
