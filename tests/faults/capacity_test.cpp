// A full arena is an error on all ranks. It says how much was requested, used and allowed, and the group stays usable.
// A rank without memory for an object ends the group.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/workspace/shared_memory_workspace.hpp>

#include "tests/faults/fault_report.hpp"
#include "tests/faults/fault_workload.hpp"
#include "tests/support/little_memory.hpp"

namespace crossrank {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t cap = std::uint64_t{8} << 20;
constexpr std::int64_t too_much = std::int64_t{12} << 20;
constexpr std::int64_t a_third = std::int64_t{5} << 19;

ConnectOptions small_arena() {
  auto options = test::fault_options();
  options.arena_cap = cap;
  return options;
}

CROSSRANK_RANK_SCENARIO(ask_for_too_much) {
  return test::end_with_verdict(self, [&] {
    auto world = connect(small_arena());
    test::say_verdict(self, "large", [&] {
      auto const mine = test::sample_tensor(self.rank, 1, self.rank == 1 ? too_much : 5000);
      get_tensors_parallel(mine, world).close();
    });
    test::gather_everything(world, 0, 2);
    world.close();
  });
}

TEST(FaultsArenaCap, reports_sizes_and_leaves_the_group_usable_when_exceeded) {
  auto const job = test::run_ranks(3, "ask_for_too_much");
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  auto const own = test::verdict_of(job.ranks.at(1), "large");
  EXPECT_EQ(own.code, "unavailable") << job.text();
  EXPECT_THAT(own.text, HasSubstr(std::to_string(cap)));
  EXPECT_THAT(own.text, HasSubstr("no space for 1"));  // 12 MiB and the metadata
  EXPECT_THAT(own.text, HasSubstr("CROSSRANK_ARENA_CAP"));
  for (std::size_t const rank : {0U, 2U}) {
    auto const verdict = test::verdict_of(job.ranks.at(rank), "large");
    EXPECT_EQ(verdict.code, "remote") << job.text();
    EXPECT_THAT(verdict.blames, ElementsAre(1)) << job.text();
    EXPECT_THAT(verdict.text, HasSubstr(std::to_string(cap)));
  }
}

CROSSRANK_RANK_SCENARIO(hold_everything) {
  return test::end_with_verdict(self, [&] {
    auto world = connect(small_arena());
    std::vector<Tensor> held;
    bool full = false;
    for (int round = 0; !full && round < 10; ++round) {
      full = !test::say_verdict(self, "holding", [&] {
        auto items = get_tensors_parallel(test::sample_tensor(self.rank, round, a_third), world).take();
        if (self.rank == 0) held.push_back(items.at(1));
      });
    }
    // The held tensors are intact, however little space there is.
    for (std::size_t round = 0; round < held.size(); ++round)
      test::require_sample(held[round], 1, static_cast<int>(round), a_third);
    held.clear();
    world.barrier();
    auto again = get_tensors_parallel(test::sample_tensor(self.rank, 99, a_third), world).take();
    if (self.rank == 0) test::require_sample(again.at(1), 1, 99, a_third);
    world.close();
  });
}

TEST(FaultsArenaCap, names_the_rank_whose_leases_hold_the_memory) {
  auto const job = test::run_ranks(2, "hold_everything");
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  auto const verdict = test::verdict_of(job.ranks.at(1), "holding");
  EXPECT_EQ(verdict.code, "unavailable") << job.text();
  EXPECT_THAT(verdict.text, HasSubstr("leased by rank 0"));
  EXPECT_THAT(verdict.text, HasSubstr(std::to_string(cap)));
  EXPECT_EQ(test::verdict_of(job.ranks.at(0), "holding").code, "remote") << job.text();
}

CROSSRANK_RANK_SCENARIO(allocate_until_full) {
  return test::end_with_verdict(self, [&] {
    auto world = connect(small_arena());
    SharedMemoryWorkspace const workspace(world);
    std::vector<Tensor> held;
    test::say_verdict(self, "full", [&] {
      while (held.size() < 100) held.push_back(workspace.zeros({a_third}, Dtype::u8));
    });
    world.barrier();
    held.clear();
    world.barrier();
    test::gather_everything(world, 0, 3);
    world.close();
  });
}

/// The cap is one reservation for the whole node. Ranks that race for the last bytes get errors, never a signal.
TEST(FaultsArenaCap, limits_all_ranks_together) {
  auto const job = test::run_ranks(3, "allocate_until_full");
  EXPECT_EQ(test::expect_one_verdict(job).code, "ok") << job.text();
  for (auto const& rank : job.ranks) {
    auto const verdict = test::verdict_of(rank, "full");
    EXPECT_EQ(verdict.code, "unavailable") << job.text();
    EXPECT_THAT(verdict.text, HasSubstr("this rank's own tensors"));
  }
}

/// Arguments: the call. Rank 1 has too little memory for what it receives.
CROSSRANK_RANK_SCENARIO(receive_an_object_without_memory) {
  return test::end_with_verdict(self, [&] {
    auto const world = connect(test::fault_options());
    constexpr int receiver = 1;
    bool const receives = self.rank == receiver;
    auto const& call = self.arguments.at(0);
    std::string const large(receives ? 0 : std::size_t{64} << 20, 'x');
    std::vector<std::string> const parts(self.rank == 0 ? 2 : 0, large);
    std::optional<test::LittleMemory> limit;
    if (receives) limit.emplace();
    if (call == "broadcast_object") static_cast<void>(world.broadcast_object(large));
    if (call == "all_gather_objects") static_cast<void>(world.all_gather_objects(large));
    if (call == "gather_objects") static_cast<void>(world.gather_objects(large, {receiver}));
    if (call == "scatter_objects") static_cast<void>(world.scatter_objects(parts));
    if (call != "recv_object") return;
    if (receives) static_cast<void>(world.recv_object<std::string>(0));
    if (!receives) world.send_object(large, receiver);
    world.barrier();
  });
}

class WithoutMemory : public testing::TestWithParam<char const*> {};

TEST_P(WithoutMemory, a_received_object_ends_the_group_with_a_typed_error) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves most of the address space";
#endif
  auto const job = test::run_ranks(2, "receive_an_object_without_memory", {.arguments = {GetParam()}});
  auto const own = test::verdict_of(job.ranks.at(1));
  EXPECT_EQ(own.code, "unavailable") << job.text();
  EXPECT_THAT(own.text, HasSubstr(GetParam())) << job.text();
  auto const other = test::verdict_of(job.ranks.at(0));
  EXPECT_EQ(other.code, "peer_lost") << job.text();
  EXPECT_THAT(other.blames, ElementsAre(1)) << job.text();
  EXPECT_THAT(other.text, HasSubstr("no memory")) << job.text();
}

INSTANTIATE_TEST_SUITE_P(FaultsObject, WithoutMemory,
                         testing::Values("broadcast_object", "all_gather_objects", "gather_objects", "scatter_objects",
                                         "recv_object"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace crossrank
