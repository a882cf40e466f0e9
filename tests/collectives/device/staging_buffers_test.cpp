#include <future>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "collectives/device/staged_call.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

/// Page-locked buffers of calls that go through host memory. Each test is a process, which reads its settings once.
namespace crossrank::test {
namespace staging_buffers_test {
namespace {

/// To free page-locked memory waits for the work of one GPU only. Each rank has a GPU, which NCCL would use.
CROSSRANK_RANK_SCENARIO(staging_buffers_of_two_gpus) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const own_gpu = Device::cuda(world.rank());
    for (int round = 0; round < 20; ++round) {
      auto tensor = filled(world, 1'000, own_gpu);
      auto group = world.split({{0, 1}});
      group.all_reduce(tensor);
      EXPECT_EQ(group.device_backend(), "staged");
      group.close();
      group = {};
      EXPECT_EQ(values(tensor), std::vector<float>(1'000, 3));
    }
  });
  return end_gpu_rank();
}

TEST(StagingBuffers, outlive_their_group_until_the_copies_of_each_gpu_have_ended) {
  expect_job_ok(1, "staging_buffers_of_two_gpus", one_process({{"CROSSRANK_DEVICE", "staged"}}));
}

/// One buffer is free, and the other one is in use on a stream that is stuck. To free the first one would wait
/// for that stream without a limit.
CROSSRANK_RANK_SCENARIO(staging_buffers_on_a_held_stream) {
  constexpr auto gpu = Device::cuda(0);
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  auto tensor = Tensor::zeros({4}, Dtype::f32, gpu);
  stream.synchronize();
  auto const buffers = std::make_shared<device::StagingBuffers>(gpu.kind, 2);
  auto busy = buffers->take(tensor.nbytes());
  HeldStream held(stream.native());
  buffers->give_back(std::move(busy), stream.record());
  std::span const bytes(tensor.data(), tensor.nbytes());
  algorithms::Call const call{.in = {.bytes = bytes}, .out = {.bytes = bytes}, .device = gpu};
  auto made = std::async(std::launch::async, [&] {
    EXPECT_THROW(device::StagedCall(call, false, buffers, stream, node::DeviceFlightNote()), TimeoutError);
  });
  EXPECT_EQ(made.wait_for(scaled_timeout(std::chrono::seconds(3))), std::future_status::ready);
  held.release();
  made.get();
  EXPECT_EQ(live("host"), 2U) << "both buffers can be used again";
  return end_gpu_rank();
}

TEST(StagedCall, ends_in_time_when_a_stream_is_stuck) {
  expect_job_ok(1, "staging_buffers_on_a_held_stream", one_process({{"CROSSRANK_TIMEOUT", "50ms"}}));
}

}  // namespace
}  // namespace staging_buffers_test
}  // namespace crossrank::test
