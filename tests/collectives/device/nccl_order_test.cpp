#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"

/// Collectives of two groups on the GPUs of the same ranks. A GPU runs them one after the other, in the order in which
/// they were enqueued, so that ranks with different orders wait for each other forever.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

Collective connect_with_deadline(CheckLevel check) {
  return connect({.backend = "shm", .timeout = short_timeout, .check = check});
}

/// Returns the check level that the last argument names.
CheckLevel level_of(RankSelf const& self) {
  return self.arguments.back() == "local" ? CheckLevel::local : CheckLevel::collective;
}

Collective second_group(Collective const& world) { return world.split({{0, 1}}, "second"); }

/// Makes the communicators.
void use_once(Collective const& world, Collective const& second) {
  auto tensor = filled(world, 1);
  world.all_reduce(tensor);
  second.all_reduce(tensor);
  current_stream(default_device()).synchronize();
}

/// Lets `reduce_both` sum two tensors over the two ranks, 50 times, and checks the sums.
void expect_both_sums(Collective const& world,
                      std::function<void(int round, Tensor& a, Tensor& b)> const& reduce_both) {
  for (int round = 0; round < 50; ++round) {
    auto a = filled(world, 100);
    auto b = filled(world, 100);
    reduce_both(round, a, b);
    EXPECT_EQ(values(a), std::vector<float>(100, 3));
    EXPECT_EQ(values(b), std::vector<float>(100, 3));
  }
}

/// Says how a further call of each group ends. One that has failed throws its failure.
void say_states(RankSelf const& self, Collective const& world, Collective const& second) {
  auto tensor = filled(world, 10);
  for (auto const* group : {&world, &second}) {
    say_verdict(self, group == &world ? "world" : "second", [&] {
      group->all_reduce(tensor);
      current_stream(default_device()).synchronize();
    });
  }
}

/// Expects that one group has failed with one error for all ranks, which names both calls, and that the other stays
/// usable. `name` is that of the second group, of the first two ranks.
void expect_crossed(JobOutcome const& job, std::string const& name = "second") {
  int failed = 0;
  for (auto const* const label : {"world", "second"}) {
    auto const verdict = verdict_of(job.ranks.at(0), label);
    bool const is_world = std::string_view(label) == "world";
    for (std::size_t rank = 0; rank < (is_world ? job.ranks.size() : 2U); ++rank)
      EXPECT_TRUE(verdict_of(job.ranks[rank], label).same(verdict)) << job.text();
    if (verdict.code == "ok") continue;
    EXPECT_EQ(verdict.code, "timeout") << job.text();
    auto const other = is_world ? name : "world";
    EXPECT_THAT(verdict.text, HasSubstr("all_reduce of group \"" + other + "\" (call 2 of NCCL) first")) << job.text();
    EXPECT_EQ(verdict.blames.size(), 1U) << "the rank whose GPU has the other call first: " << job.text();
    ++failed;
    EXPECT_LT(verdict.milliseconds, (short_timeout + allowance).count()) << job.text();
  }
  EXPECT_EQ(failed, 1) << job.text();
  EXPECT_FALSE(job.timed_out) << job.text();
}

// ---------------------------------------------------------------- the same order

/// Starts a sum over a tensor, or over its halves, in an order that makes a fused call pack them.
Request start_sum(Collective const& group, Tensor& tensor, bool fused) {
  if (!fused) return group.iall_reduce(tensor);
  auto const half = tensor.numel() / 2;
  std::vector<Tensor> halves{tensor.narrow(0, half, half), tensor.narrow(0, 0, half)};
  return group.iall_reduce(std::span<Tensor>(halves));
}

/// Ranks start calls of two groups in one order, and wait for them in different ones. Arguments: "fused" or "single",
/// the check level.
CROSSRANK_RANK_SCENARIO(nccl_waits_in_different_orders) {
  auto const world = connect_with_deadline(level_of(self));
  auto const second = second_group(world);
  use_once(world, second);
  bool const fused = self.arguments.at(0) == "fused";
  expect_both_sums(world, [&](int round, Tensor& a, Tensor& b) {
    auto first = start_sum(world, a, fused);
    auto other = start_sum(second, b, fused);
    if (self.rank == 0) {
      first.wait();
      other.wait();
    } else if (round % 2 == 0) {
      other.wait();
      first.wait();
    } else {
      while (!other.test()) std::this_thread::yield();
      first.wait();
    }
  });
  return end_gpu_rank();
}

TEST(NcclOrder, is_that_of_the_starts) {
  for (auto const* const level : {"local", "collective"}) {
    for (auto const* const calls : {"single", "fused"}) {
      auto options = gpu_ranks();
      options.arguments = {calls, level};
      expect_job_ok(2, "nccl_waits_in_different_orders", std::move(options));
    }
  }
}

/// A blocking call behind one of another group that has not been agreed on yet. Argument: the check level.
CROSSRANK_RANK_SCENARIO(nccl_call_behind_a_started_one) {
  auto const world = connect_with_deadline(level_of(self));
  auto const second = second_group(world);
  use_once(world, second);
  expect_both_sums(world, [&](int, Tensor& a, Tensor& b) {
    auto first = world.iall_reduce(a);
    second.all_reduce(b);
    first.wait();
  });
  return end_gpu_rank();
}

TEST(NcclOrder, holds_for_a_blocking_call_behind_a_started_one) {
  for (auto const* const level : {"local", "collective"}) {
    auto options = gpu_ranks();
    options.arguments = {level};
    expect_job_ok(2, "nccl_call_behind_a_started_one", std::move(options));
  }
}

/// A request that is dropped does not keep later calls of other groups waiting.
CROSSRANK_RANK_SCENARIO(nccl_dropped_request_before_a_call) {
  auto const world = connect_with_deadline(CheckLevel::collective);
  auto const second = second_group(world);
  use_once(world, second);
  auto a = filled(world, 100);
  auto b = filled(world, 100);
  if (self.rank == 0) static_cast<void>(world.iall_reduce(a));
  second.all_reduce(b);
  EXPECT_EQ(values(b), std::vector<float>(100, 3));
  return end_gpu_rank();
}

/// A call that has failed does not keep later calls of other groups waiting, while its request is there.
CROSSRANK_RANK_SCENARIO(nccl_failed_request_before_a_call) {
  auto const world = connect_with_deadline(CheckLevel::collective);
  auto const second = second_group(world);
  use_once(world, second);
  auto a = filled(world, 100 + self.rank);
  auto b = filled(world, 100);
  auto request = world.iall_reduce(a);
  EXPECT_THROW(
      {
        while (!request.test()) std::this_thread::yield();
      },
      MismatchError);
  second.all_reduce(b);
  EXPECT_EQ(values(b), std::vector<float>(100, 3));
  return end_gpu_rank();
}

TEST(NcclOrder, forgets_a_failed_request) { expect_job_ok(2, "nccl_failed_request_before_a_call"); }

TEST(NcclOrder, forgets_a_dropped_request) { expect_job_ok(2, "nccl_dropped_request_before_a_call"); }

// ---------------------------------------------------------------- different orders

/// Ranks enqueue calls of two groups in different orders. Argument: whether they compare their arguments.
CROSSRANK_RANK_SCENARIO(nccl_calls_in_different_orders) {
  bool const is_checked = self.arguments.at(0) == "checked";
  auto const world = connect_with_deadline(is_checked ? CheckLevel::local : CheckLevel::off);
  auto const second = second_group(world);
  use_once(world, second);
  auto a = filled(world, 100);
  auto b = filled(world, 100);
  say_verdict(self, "calls", [&] {
    auto const& first_group = self.rank == 0 ? world : second;
    auto const& other_group = self.rank == 0 ? second : world;
    auto first = first_group.iall_reduce(a);
    auto other = other_group.iall_reduce(b);
    first.wait();
    other.wait();
    current_stream(default_device()).synchronize();
  });
  say_states(self, world, second);
  return 0;
}

class NcclCrossedCalls : public testing::TestWithParam<char const*> {};

TEST_P(NcclCrossedCalls, are_an_error_that_names_both_calls) {
  auto options = gpu_ranks();
  options.arguments = {GetParam()};
  auto const job = run_ranks(2, "nccl_calls_in_different_orders", std::move(options));
  expect_crossed(job);
  for (auto const& rank : job.ranks) EXPECT_EQ(verdict_of(rank, "calls").code, "timeout") << job.text();
}

TEST_P(NcclCrossedCalls, are_an_error_on_streams_of_their_own_too) {
  auto options = gpu_ranks();
  options.arguments = {GetParam()};
  auto const job = run_ranks(2, "nccl_calls_on_two_streams", std::move(options));
  expect_crossed(job);
}

INSTANTIATE_TEST_SUITE_P(Checks, NcclCrossedCalls, testing::Values("checked", "unchecked"));

/// As above; each group has a stream of its own.
CROSSRANK_RANK_SCENARIO(nccl_calls_on_two_streams) {
  bool const is_checked = self.arguments.at(0) == "checked";
  auto const world = connect_with_deadline(is_checked ? CheckLevel::local : CheckLevel::off);
  auto const second = second_group(world);
  use_once(world, second);
  auto a = filled(world, 100);
  auto b = filled(world, 100);
  auto const stream_of_world = Stream::create(default_device());
  auto const stream_of_second = Stream::create(default_device());
  current_stream(default_device()).synchronize();
  say_verdict(self, "calls", [&] {
    auto const start = [&](Collective const& group, Tensor& tensor, Stream const& stream) {
      StreamGuard const guard(stream);
      return group.iall_reduce(tensor);
    };
    Request first;
    Request other;
    if (self.rank == 0) first = start(world, a, stream_of_world);
    other = start(second, b, stream_of_second);
    if (self.rank != 0) first = start(world, a, stream_of_world);
    first.wait();
    other.wait();
    stream_of_world.synchronize();
    stream_of_second.synchronize();
  });
  say_states(self, world, second);
  return 0;
}

/// Rank 2 is in the first group alone, and cannot see that the others have their calls in different orders. Argument:
/// the name of the second group.
CROSSRANK_RANK_SCENARIO(nccl_calls_in_different_orders_elsewhere) {
  auto const world = connect_with_deadline(CheckLevel::off);
  auto const second = world.split({{0, 1}, {2}}, self.arguments.at(0));
  use_once(world, second);
  auto a = filled(world, 100);
  auto b = filled(world, 100);
  say_verdict(self, "calls", [&] {
    Request other;
    if (self.rank == 1) other = second.iall_reduce(b);
    auto const first = world.iall_reduce(a);
    if (self.rank == 0) other = second.iall_reduce(b);
    current_stream(default_device()).synchronize();
  });
  say_states(self, world, second);
  return 0;
}

class NcclCrossedCallsElsewhere : public testing::TestWithParam<char const*> {};

TEST_P(NcclCrossedCallsElsewhere, end_in_one_group) {
  auto options = gpu_ranks();
  options.arguments = {GetParam()};
  auto const job = run_ranks(3, "nccl_calls_in_different_orders_elsewhere", std::move(options));
  expect_crossed(job, GetParam());
}

// Two names, so that either group can be the one that fails.
INSTANTIATE_TEST_SUITE_P(Names, NcclCrossedCallsElsewhere, testing::Values("second", "third"));

/// Blocking calls that ranks compare fail on the host already.
CROSSRANK_RANK_SCENARIO(nccl_blocking_calls_in_different_orders) {
  auto const world = connect_with_deadline(CheckLevel::collective);
  auto const second = second_group(world);
  use_once(world, second);
  return end_with_verdict(self, [&] {
    auto tensor = filled(world, 100);
    (self.rank == 0 ? world : second).all_reduce(tensor);
    (self.rank == 0 ? second : world).all_reduce(tensor);
  });
}

TEST(NcclCrossedBlockingCalls, are_an_error_before_they_are_enqueued) {
  auto const job = run_ranks(2, "nccl_blocking_calls_in_different_orders", gpu_ranks());
  int timeouts = 0;  // a rank that ends first is lost for the other one
  for (int rank = 0; rank < 2; ++rank) {
    auto const verdict = verdict_of(job.ranks.at(as_size(rank)));
    EXPECT_TRUE(verdict.code == "timeout" || verdict.code == "peer_lost") << job.text();
    EXPECT_TRUE(verdict.blames_only(1 - rank)) << job.text();
    EXPECT_THAT(verdict.text, HasSubstr("all_reduce")) << job.text();
    EXPECT_THAT(verdict.text, HasSubstr(rank == 0 ? "group world" : "group second")) << job.text();
    EXPECT_LT(verdict.milliseconds, (short_timeout + allowance).count()) << job.text();
    timeouts += verdict.code == "timeout" ? 1 : 0;
  }
  EXPECT_GE(timeouts, 1) << job.text();
}

/// A call waits behind one of another group that rank 1 never makes.
CROSSRANK_RANK_SCENARIO(nccl_call_behind_a_missing_one) {
  auto const world = connect_with_deadline(CheckLevel::collective);
  auto const second = second_group(world);
  use_once(world, second);
  auto a = filled(world, 100);
  auto b = filled(world, 100);
  return end_with_verdict(self, [&] {
    Request first;
    if (self.rank == 0) first = world.iall_reduce(a);
    second.all_reduce(b);
    current_stream(default_device()).synchronize();
  });
}

TEST(NcclOrder, that_a_missing_call_holds_up_is_an_error_that_names_it) {
  auto const job = run_ranks(2, "nccl_call_behind_a_missing_one", gpu_ranks());
  auto const verdict = verdict_of(job.ranks.at(0));
  EXPECT_EQ(verdict.code, "timeout") << job.text();
  EXPECT_THAT(verdict.text, HasSubstr("all_reduce of group \"world\"")) << job.text();
  EXPECT_NE(verdict_of(job.ranks.at(1)).code, "ok") << job.text();
  EXPECT_FALSE(job.timed_out) << job.text();
}

}  // namespace
}  // namespace crossrank::test
