#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/message_ranks.hpp"

/// NCCL in groups whose ranks exchange packets, also on two hosts. The ranks are threads with a GPU each.
namespace crossrank::test {
namespace {

MessageRankOptions network_options(RankSelf const& self) {
  return {.timeout = self.arguments.at(1) == "short" ? std::chrono::milliseconds(6'000) : step_timeout,
          .node_memory = self.arguments.at(0) == "composite"};
}

class NcclNetwork : public testing::TestWithParam<char const*> {
 protected:
  /// Runs a scenario in one process.
  static void run(std::string_view scenario, std::string timeout = "long",
                  EmulatedNccl version = EmulatedNccl::newest) {
    auto options = gpu_ranks(version);
    options.arguments = {GetParam(), std::move(timeout)};
    expect_job_ok(1, scenario, std::move(options));
  }
};

CROSSRANK_RANK_SCENARIO(nccl_network_data) {
  run_message_ranks(
      4,
      [](Collective const& world, MemoryHub&) {
        auto tensor = filled_on_own_gpu(world, 1'000);
        world.all_reduce(tensor);
        EXPECT_EQ(world.device_backend(), "nccl");
        EXPECT_EQ(values(tensor), std::vector<float>(1'000, 10));
        std::vector<std::int64_t> const rows{0, 1, 2, 3};
        auto all = Tensor::empty({6}, Dtype::f32, gpu_of_thread(world));
        world.all_gatherv(all, filled_on_own_gpu(world, world.rank()), {.rows = rows});
        EXPECT_EQ(values(all), (std::vector<float>{2, 3, 3, 4, 4, 4}));
        auto group = world.split({{3, 1}, {0, 2}});
        auto part = filled_on_own_gpu(world, 5);
        group.all_reduce(part);
        EXPECT_EQ(values(part), std::vector<float>(5, world.rank() % 2 == 0 ? 4.0F : 6.0F));
        group.close();
        auto unequal = filled_on_own_gpu(world, 4 + world.rank() / 3);
        auto const end_unequal = [&] {
          world.all_reduce(unequal);
          current_stream(gpu_of_thread(world)).synchronize();
        };
        EXPECT_THROW(end_unequal(), MismatchError);
      },
      network_options(self));
  return end_gpu_rank();
}

TEST_P(NcclNetwork, carries_collectives) { run("nccl_network_data"); }

CROSSRANK_RANK_SCENARIO(nccl_network_older_library) {
  run_message_ranks(
      2,
      [](Collective const& world, MemoryHub&) {
        auto tensor = filled_on_own_gpu(world, 10);
        world.all_reduce(tensor);
        EXPECT_EQ(world.device_backend(), "staged");
        EXPECT_EQ(values(tensor), std::vector<float>(10, 3));
      },
      network_options(self));
  return end_gpu_rank();
}

TEST_P(NcclNetwork, leaves_threads_of_one_process_to_host_memory_with_an_older_library) {
  run("nccl_network_older_library", "long", EmulatedNccl::v2_22);
}

CROSSRANK_RANK_SCENARIO(nccl_network_forced) {
  run_message_ranks(
      2,
      [](Collective const& world, MemoryHub&) {
        auto tensor = filled_on_own_gpu(world, 10);
        try {
          world.all_reduce(tensor);
          ADD_FAILURE() << "no error";
        } catch (UnavailableError const& e) {
          EXPECT_THAT(e.info().message, testing::HasSubstr("rank 0 and rank 1 are threads of one process"));
        }
        world.barrier();
      },
      network_options(self));
  return end_gpu_rank();
}

TEST_P(NcclNetwork, tells_why_an_older_library_does_not_serve_threads) {
  auto options = gpu_ranks(EmulatedNccl::v2_18);
  options.environment["CROSSRANK_DEVICE"] = "nccl";
  options.arguments = {GetParam(), "long"};
  expect_job_ok(1, "nccl_network_forced", std::move(options));
}

/// Rank 2 is lost by `lose` while the others have enqueued a call. They get an error of this type that names it.
template <class Expected>
void lose_rank_2(MessageRankOptions const& options, std::function<void(MemoryHub&)> const& lose) {
  std::atomic<int> enqueued_count{0};
  std::atomic<int> error_count{0};
  run_message_ranks(
      4,
      [&](Collective const& checked, MemoryHub& hub) {
        auto const world = make_collective(checked.transport(), checked.timeout_policy(), CheckLevel::off);
        auto tensor = filled_on_own_gpu(world, 1'000);
        world.all_reduce(tensor);
        EXPECT_EQ(values(tensor), std::vector<float>(1'000, 10));
        world.barrier();
        if (world.rank() == 2) {
          while (enqueued_count < 3) std::this_thread::yield();
          lose(hub);
          while (error_count < 3) std::this_thread::yield();
          return;
        }
        try {
          world.all_reduce(tensor);
          ++enqueued_count;
          current_stream(gpu_of_thread(world)).synchronize();
          ADD_FAILURE() << "no error";
        } catch (Expected const& e) {
          EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(2)) << e.what();
        }
        ++error_count;
      },
      options);
}

CROSSRANK_RANK_SCENARIO(nccl_network_disconnect) {
  lose_rank_2<TimeoutError>(network_options(self), [](MemoryHub& hub) { hub.disconnect(2); });
  return 0;
}

TEST_P(NcclNetwork, names_a_rank_that_is_disconnected) { run("nccl_network_disconnect", "short"); }

/// NCCL reports the loss of rank 2 on the others before the group on the CPU knows of it.
CROSSRANK_RANK_SCENARIO(nccl_network_error) {
  lose_rank_2<PeerLostError>(network_options(self), [](MemoryHub& hub) {
    hub.disconnect(2);
    constexpr int remote_error = 6;
    fail_communicators(remote_error);
  });
  return 0;
}

TEST_P(NcclNetwork, names_the_lost_rank_and_not_the_one_that_reports_an_error) { run("nccl_network_error"); }

/// Rank 2 does not make a call that the others have enqueued, but lives.
CROSSRANK_RANK_SCENARIO(nccl_network_late) {
  std::atomic<int> error_count{0};
  run_message_ranks(
      4,
      [&](Collective const& checked, MemoryHub&) {
        auto const other_group = checked.split({{0, 1, 2, 3}});
        auto const world = make_collective(checked.transport(), checked.timeout_policy(), CheckLevel::off);
        auto tensor = filled_on_own_gpu(world, 1'000);
        world.all_reduce(tensor);
        EXPECT_EQ(values(tensor), std::vector<float>(1'000, 10));
        world.barrier();
        while (world.rank() == 2 && error_count < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        try {
          world.all_reduce(tensor);
          current_stream(gpu_of_thread(world)).synchronize();
          ADD_FAILURE() << "no error on rank " << world.rank();
        } catch (TimeoutError const& e) {
          EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(2)) << e.what();
        }
        ++error_count;
        other_group.barrier();
      },
      network_options(self));
  return 0;
}

TEST_P(NcclNetwork, names_a_late_rank_and_lets_it_live) { run("nccl_network_late", "short"); }

INSTANTIATE_TEST_SUITE_P(Backends, NcclNetwork, testing::Values("messages", "composite"));

}  // namespace
}  // namespace crossrank::test
