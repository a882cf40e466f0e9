#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "collectives/core/progress_thread.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

/// Non-blocking calls that a thread of the library advances.
namespace crossrank::test::progress_thread_test {
namespace {

constexpr std::int64_t many = 400'000;

Tensor filled(std::int64_t count, float value) {
  auto tensor = Tensor::empty({count}, Dtype::f32);
  std::ranges::fill(tensor.as_mutable<float>(), value);
  return tensor;
}

class ProgressThread : public testing::TestWithParam<ConformanceParameter> {};

TEST_P(ProgressThread, keeps_what_requests_promise) {
  ThreadRankOptions const options{.job_id = random_job_id()};
  auto const& parameter = GetParam();
  run_thread_ranks(
      parameter.ranks,
      [&](Collective const& world) {
        auto driven = thread_options(world.rank(), world.world_size(), options);
        driven.progress = ProgressMode::thread;
        run_conformance_case(parameter.test, {connect(driven), driven});
      },
      options);
}

TEST(ProgressThreads, throw_a_typed_error_when_they_cannot_be_started) {
  NoThreads const none;
  ASSERT_TRUE(none.refused());
  try {
    detail::ProgressThread const thread;
    FAIL() << "started";
  } catch (UnavailableError const& error) {
    EXPECT_NE(error.info().system_errno, 0);
  }
}

std::vector<ConformanceParameter> cases_with_requests() {
  std::vector<ConformanceParameter> all;
  for (auto const part : {request_cases(), message_cases(), disagreement_cases()}) {
    for (auto const& test : part) all.push_back({test, std::max(3, test.min_ranks)});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Case, ProgressThread, testing::ValuesIn(cases_with_requests()),
                         [](auto const& one) { return parameter_name(one.param); });

/// No rank calls the library between start and end: only its thread can have moved the data.
TEST(ProgressThread, completes_calls_while_their_callers_compute) {
  run_driven_ranks(3, [](Collective world) {
    auto first = filled(many, 1);
    auto second = filled(many, 2);
    std::vector<Request> requests;
    requests.push_back(world.iall_reduce(first));
    requests.push_back(world.iall_reduce(second));
    for (auto& request : requests) {
      while (!request.test()) std::this_thread::yield();  // looks without advancing anything
    }
    EXPECT_EQ(first.as<float>().back(), 3);
    EXPECT_EQ(second.as<float>().front(), 6);
    world.close();
  });
}

/// The thread does not know a call that was started before it.
TEST(ProgressThread, lets_calls_end_that_were_started_before_it) {
  ThreadRankOptions const options{.job_id = random_job_id()};
  run_thread_ranks(
      2,
      [&](Collective const& world) {
        auto early = filled(many, 1);
        auto request = world.iall_reduce(early);
        auto driven = thread_options(world.rank(), 2, options);
        driven.progress = ProgressMode::thread;
        Collective const same = connect(driven);
        EXPECT_TRUE(request.wait_for(std::chrono::seconds(60)));
        EXPECT_EQ(early.as<float>().back(), 2);
        auto late = filled(many, 2);
        auto next = same.iall_reduce(late);
        EXPECT_TRUE(next.wait_for(std::chrono::seconds(60)));
        EXPECT_EQ(late.as<float>().back(), 4);
      },
      options);
}

/// The groups of one rank belong to two threads, which do not agree on an order.
TEST(ProgressThread, lets_two_threads_use_two_groups) {
  run_driven_ranks(3, [](Collective world) {
    auto const other = world.split_by(0);
    auto const drive = [](Collective const& group, float value) {
      for (int i = 0; i < 20; ++i) {
        auto values = filled(50'000, value);
        auto request = group.iall_reduce(values);
        if (i % 3 == 0) group.barrier();
        request.wait();
        EXPECT_EQ(values.as<float>()[7], 3 * value);
      }
    };
    std::thread backward([&] { drive(other, 5); });
    drive(world, 2);
    backward.join();
    world.close();
  });
}

TEST(ProgressThread, refuses_a_second_call_on_a_busy_group) {
  run_driven_ranks(2, [](Collective world) {
    auto const other = world.split_by(0);
    auto values = filled(10, 1);
    if (world.rank() == 0) {
      Collective::CallLock const busy(other, "an open range");
      EXPECT_THROW(static_cast<void>(other.iall_reduce(values)), UsageError);
    }
    other.all_reduce(values);
    world.close();
  });
}

TEST(ProgressThread, reports_a_mismatch_to_the_waiting_rank) {
  run_driven_ranks(2, [](Collective const& world) {
    auto values = filled(10 + world.rank(), 1);
    auto request = world.iall_reduce(values);
    EXPECT_THROW(request.wait(), MismatchError);
  });
}

/// A group that goes while its thread may look at it. Nothing is left to see but the sanitizers' reports.
TEST(ProgressThread, lets_groups_go_at_any_time) {
  run_driven_ranks(2, [](Collective world) {
    for (int i = 0; i < 50; ++i) {
      auto part = world.split_by(0);
      auto values = filled(100, 1);
      part.iall_reduce(values).wait();
    }
    world.close();
  });
}

}  // namespace
}  // namespace crossrank::test::progress_thread_test
