#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"

/// CUDA_VISIBLE_DEVICES that differs between the ranks, and ranks that use the GPU of another rank.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t long_message = 50'000;

/// Returns the GPU that the rank uses: the first argument for rank 0, the second one for rank 1. "own": its default.
Device used_gpu(RankSelf const& self) {
  auto const& index = self.arguments.at(as_size(self.rank));
  return index == "own" ? default_device() : Device::cuda(std::stoi(index));
}

Tensor on_gpu(float value, std::int64_t count, Device gpu) {
  return Tensor::of(std::vector<float>(as_size(count), value), {count}).to(gpu);
}

/// Arguments: the GPU of each rank, the expected backend, and whether messages stay on the GPUs.
CROSSRANK_RANK_SCENARIO(visible_devices) {
  auto const world = connect_gpu_rank();
  auto const gpu = used_gpu(self);
  auto tensor = on_gpu(static_cast<float>(world.rank() + 1), 1'000, gpu);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), self.arguments.at(2));
  EXPECT_THAT(values(tensor), testing::Each(3));

  constexpr int rounds = 6;
  int const other = 1 - world.rank();
  std::vector<Tensor> received;
  std::vector<Tensor> sent;
  for (int round = 0; round < rounds; ++round) {
    received.push_back(on_gpu(-1, long_message, gpu));
    sent.push_back(on_gpu(static_cast<float>(10 * round + world.rank()), long_message, gpu));
  }
  current_stream(gpu).synchronize();
  world.barrier();
  reset_emulated_counts();
  for (std::size_t round = 0; round < rounds; ++round)
    world.sendrecv(received[round], sent[round], {.dst = other, .src = other});
  auto const through_host = emulated_count("cuMemcpyDtoHAsync_v2");
  if (self.arguments.at(3) == "direct") {
    EXPECT_LE(through_host, 2U) << "only the first message announces the memory of the others";
  } else {
    EXPECT_EQ(through_host, rounds);
  }
  for (int round = 0; round < rounds; ++round)
    EXPECT_THAT(values(received[as_size(round)]), testing::Each(static_cast<float>(10 * round + other)));

  auto const group = GroupCoordinator::create(world, {{0, 1}}, {.name = "tp", .device_communicator = true});
  TensorDict dict;
  if (world.rank() == 0) dict.set("gpu", on_gpu(5, long_message, default_device()));
  dict = group.broadcast_tensor_dict(std::move(dict));
  auto const& arrived = *dict.at("gpu").tensor();
  EXPECT_EQ(arrived.device(), default_device());
  EXPECT_THAT(values(arrived), testing::Each(5));
  if (world.rank() == 0) group.send_tensor_dict(dict, {.dst = 1});
  if (world.rank() == 1) {
    EXPECT_THAT(values(*group.recv_tensor_dict({.src = 0}).at("gpu").tensor()), testing::Each(5));
  }
  world.barrier();
  return end_gpu_rank();
}

/// Runs both ranks, each with its own CUDA_VISIBLE_DEVICES.
JobOutcome run_visible(std::vector<std::string> const& visible, std::vector<std::string> arguments,
                       RankOptions options = gpu_ranks()) {
  for (int rank = 0; rank < 2; ++rank) {
    auto const& gpus = visible.at(as_size(rank));
    if (!gpus.empty()) options.rank_environment[rank]["CUDA_VISIBLE_DEVICES"] = gpus;
  }
  options.arguments = std::move(arguments);
  auto job = run_ranks(2, "visible_devices", std::move(options));
  EXPECT_TRUE(job.ok()) << job.text();
  return job;
}

/// As Slurm and Ray set it. A rank cannot open memory of a GPU that it does not see.
TEST(VisibleDevices, of_one_gpu_for_each_rank_serve_nccl_and_messages) {
  run_visible({"0", "1"}, {"own", "own", "nccl", "staged"});
}

TEST(VisibleDevices, in_another_order_for_each_rank_serve_nccl_and_direct_messages) {
  run_visible({"0,1", "1,0"}, {"0", "0", "nccl", "direct"});
}

/// `default_device()` of both ranks is the same GPU.
TEST(VisibleDevices, that_name_one_gpu_twice_go_through_host_memory) {
  auto const job = run_visible({"0,1", "1,0"}, {"own", "own", "staged", "direct"});
  EXPECT_THAT(job.ranks[0].err, HasSubstr("rank 0 and rank 1 use the same GPU, GPU-"));
}

TEST(VisibleDevices, that_are_the_same_gpu_for_both_ranks_go_through_host_memory) {
  auto const job = run_visible({"2", "2"}, {"own", "own", "staged", "direct"});
  EXPECT_THAT(job.ranks[0].err, HasSubstr("rank 0 and rank 1 use the same GPU, GPU-"));
}

class BorrowedGpu : public testing::TestWithParam<char const*> {};
INSTANTIATE_TEST_SUITE_P(Backends, BorrowedGpu, testing::Values("nccl", "staged"),
                         [](auto const& one) { return std::string(one.param); });

/// Rank 1 uses the GPU of rank 0. It then calls the collective on its own GPU, or names the other one as its own.
CROSSRANK_RANK_SCENARIO(borrowed_gpu) {
  auto const world = connect_gpu_rank();
  auto tensor = on_gpu(1, 100, Device::cuda(0));
  try {
    world.all_reduce(tensor);
    ADD_FAILURE() << "accepted";
  } catch (UsageError const& e) {
    auto const& info = e.info();
    EXPECT_EQ(info.message, "rank 1 uses the GPU of rank 0, and not its own");
    EXPECT_EQ(info.expected, "tensors on cuda:1");
    EXPECT_THAT(info.got, HasSubstr("tensors on cuda:0, GPU-"));
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(1));
    EXPECT_TRUE(info.group_usable);
  }
  if (self.arguments.at(0) == "shared") set_default_device(Device::cuda(0));
  auto again = on_gpu(1, 100, default_device());
  world.all_reduce(again);
  EXPECT_THAT(values(again), testing::Each(2));
  EXPECT_EQ(world.device_backend(), self.arguments.at(1));
  world.barrier();
  return end_gpu_rank();
}

TEST_P(BorrowedGpu, is_an_error_on_all_ranks_and_the_group_stays_usable) {
  bool const staged = std::string(GetParam()) == "staged";
  for (auto const* const way : {"own", "shared"}) {
    auto options = gpu_ranks();
    if (staged) options.environment["CROSSRANK_DEVICE"] = "staged";
    options.arguments = {way, staged || std::string(way) == "shared" ? "staged" : "nccl"};
    auto const job = run_ranks(2, "borrowed_gpu", std::move(options));
    EXPECT_TRUE(job.ok()) << job.text();
  }
}

/// Both ranks use another GPU than their own, and no rank the same.
TEST(OtherGpu, is_allowed_where_no_two_ranks_use_one) { run_visible({"", ""}, {"1", "0", "nccl", "direct"}); }

}  // namespace
}  // namespace crossrank::test
