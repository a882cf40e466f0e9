#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/faults/fault_report.hpp"
#include "tests/support/emulated_driver.hpp"

/// Messages between GPUs: through memory on the sender's GPU, and through host memory, with the same results.
namespace crossrank::test {
namespace {

constexpr std::int64_t elements = 50'000;  // 200,000 bytes

/// Returns a tensor on this rank's GPU.
Tensor full(float value, std::int64_t count = elements) {
  return Tensor::of(std::vector<float>(as_size(count), value), {count}).to(default_device());
}

Tensor receive(Collective const& world, int src, std::int64_t count = elements) {
  auto tensor = full(-1, count);
  world.recv(tensor, src);
  return tensor;
}

void expect_all(Tensor const& tensor, float value) {
  EXPECT_THAT(values(tensor), testing::Each(value)) << "expected " << value;
}

/// Lets rank `dst` open the memory of rank `src`: the first message announces it, and goes through host memory.
void warm_up(Collective const& world, int src, int dst, std::int64_t count = elements) {
  if (world.rank() == src) world.send(full(7, count), dst);
  if (world.rank() == dst) expect_all(receive(world, src, count), 7);
  world.barrier();
}

unsigned long long copies_through_the_host() {
  return emulated_count("cuMemcpyDtoHAsync_v2") + emulated_count("cuMemcpyHtoDAsync_v2");
}

std::string path_of(RankSelf const& self) { return self.arguments.empty() ? "direct" : self.arguments.at(0); }

RankOptions on_path(std::string const& path) {
  auto options = gpu_ranks();
  options.arguments = {path};
  if (path == "staged") options.environment["CROSSRANK_DEVICE"] = "staged";
  return options;
}

CROSSRANK_RANK_SCENARIO(device_messages_warm) {
  auto const world = connect_gpu_rank();
  constexpr int rounds = 40;
  warm_up(world, 0, 1);
  warm_up(world, 1, 0);
  std::vector<Tensor> received;
  for (int i = 0; i < rounds; ++i) received.push_back(full(-1));
  auto sent = full(3);
  current_stream(default_device()).synchronize();
  world.barrier();
  reset_emulated_counts();
  for (auto& tensor : received) {
    if (world.rank() == 0) world.send(sent, 1);
    world.recv(tensor, 1 - world.rank());
    if (world.rank() == 1) world.send(sent, 0);
  }
  bool const direct = path_of(self) == "direct";
  EXPECT_EQ(copies_through_the_host(), direct ? 0U : 2U * rounds);
  EXPECT_EQ(emulated_count("cuMemcpyDtoDAsync_v2") + emulated_count("cuMemcpyPeerAsync"), direct ? 2U * rounds : 0U);
  for (auto const* const call : {"cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemHostAlloc", "cuIpcOpenMemHandle_v2",
                                 "cuIpcCloseMemHandle", "cuIpcGetMemHandle"}) {
    if (direct) {
      EXPECT_EQ(emulated_count(call), 0U) << call;
    }
  }
  for (auto const& tensor : received) expect_all(tensor, 3);
  world.barrier();
  return end_gpu_rank();
}

CROSSRANK_RANK_SCENARIO(device_messages_changed_at_once) {
  auto const world = connect_gpu_rank();
  warm_up(world, 0, 1);
  for (int i = 0; i < 1'500; ++i) {
    auto const value = static_cast<float>(i);
    std::int64_t const count = i % 7 == 0 ? 10 : 9'000 + i;  // of both paths
    if (world.rank() == 0) {
      auto tensor = full(value, count);
      world.send(tensor, 1);
      tensor.copy_from(full(-2, count));  // and it is freed
    } else {
      expect_all(receive(world, 0, count), value);
    }
  }
  world.barrier();
  return end_gpu_rank();
}

CROSSRANK_RANK_SCENARIO(device_messages_mixed) {
  auto const world = connect_gpu_rank();
  int const other = 1 - world.rank();
  for (int round = 0; round < 12; ++round) {
    auto const value = static_cast<float>(10 * round + world.rank());
    auto const expected = static_cast<float>(10 * round + other);
    auto const on_host = full(value).to(Device::cpu());
    auto got_on_host = Tensor::empty({elements}, Dtype::f32, MemoryOptions{.pinned = round % 2 != 0});
    got_on_host.copy_from(Tensor::zeros({elements}, Dtype::f32));
    // A GPU sends to a CPU, and the other way round.
    if (world.rank() == 0) world.send(full(value), 1);
    if (world.rank() == 1) world.recv(got_on_host, 0);
    if (world.rank() == 1) expect_all(got_on_host, expected);
    if (world.rank() == 1) world.send(on_host, 0);
    if (world.rank() == 0) expect_all(receive(world, 1), expected);
    // Between GPUs, from any rank, in both directions at once, and without blocking.
    if (world.rank() == 0) world.send(full(value), 1);
    auto got = full(-1);
    if (world.rank() == 1) {
      EXPECT_EQ(world.recv_any(got), 0);
    }
    if (world.rank() == 1) expect_all(got, expected);
    auto got_more = full(-1);
    auto receiving = world.irecv(got, other);
    auto receiving_more = world.irecv(got_more, other);
    auto sending = world.isend(full(value), other);
    auto sending_more = world.isend(full(value + 1'000), other);
    for (auto* const request : {&receiving, &receiving_more, &sending, &sending_more}) request->wait();
    expect_all(got, expected);
    expect_all(got_more, expected + 1'000);
  }
  world.barrier();
  return end_gpu_rank();
}

CROSSRANK_RANK_SCENARIO(device_messages_mismatch) {
  auto const world = connect_gpu_rank();
  warm_up(world, 0, 1);
  for (int i = 0; i < 30; ++i) {  // more than there are slots
    if (world.rank() == 0) {
      world.send(full(1), 1);
      world.send(full(2), 1);
      continue;
    }
    auto tensor = full(-1, elements + 1);
    EXPECT_THROW(world.recv(tensor, 0), MismatchError);
    expect_all(receive(world, 0), 2);
  }
  world.barrier();
  return end_gpu_rank();
}

/// Each rank has a second GPU, which no other rank uses.
Device second_gpu(Collective const& world) { return Device::cuda(world.rank() + 2); }

CROSSRANK_RANK_SCENARIO(device_messages_two_gpus) {
  auto const world = connect_gpu_rank();
  int const other = 1 - world.rank();
  auto here = full(static_cast<float>(world.rank()));
  auto elsewhere = full(-1).to(second_gpu(world));
  Partners const partners{.dst = other, .src = other};
  EXPECT_THROW(world.sendrecv(elsewhere, here, partners), UsageError);
  auto on_host = here.to(Device::cpu());
  EXPECT_THROW(world.sendrecv(on_host, here, partners), UsageError);
  world.sendrecv(here, full(static_cast<float>(world.rank())), partners);
  expect_all(here, static_cast<float>(other));
  EXPECT_THROW(world.send(elsewhere, other), UsageError);
  EXPECT_THROW(world.recv(elsewhere, other), UsageError);
  EXPECT_THROW(static_cast<void>(world.isend(elsewhere, other)), UsageError);
  EXPECT_THROW(static_cast<void>(world.irecv_any(elsewhere)), UsageError);
  EXPECT_THROW(world.all_reduce(elsewhere), UsageError);
  world.all_reduce(here);
  expect_all(here, 1);
  auto const another_group = world.split({{0, 1}});
  another_group.sendrecv(elsewhere, here.to(second_gpu(world)), partners);
  expect_all(elsewhere, 1);
  world.barrier();
  return end_gpu_rank();
}

CROSSRANK_RANK_SCENARIO(device_dictionaries_two_gpus) {
  auto const world = connect_gpu_rank();
  auto const group = GroupCoordinator::create(world, {{0, 1}});
  auto const elsewhere = full(3).to(second_gpu(world));
  TensorDict mixed;
  mixed.set("here", full(2));
  mixed.set("elsewhere", elsewhere);
  if (world.rank() == 0) {
    EXPECT_THROW(group.send_tensor_dict(mixed, {.dst = 1}), UsageError);
    EXPECT_THROW(static_cast<void>(group.broadcast_tensor_dict(mixed)), UsageError);
  } else {
    EXPECT_THROW(static_cast<void>(group.recv_tensor_dict({.src = 0})), RemoteError);
    EXPECT_THROW(static_cast<void>(group.broadcast_tensor_dict({})), RemoteError);
  }
  TensorDict dict;
  dict.set("elsewhere", elsewhere);
  if (world.rank() == 0) group.send_tensor_dict(dict, {.dst = 1});
  if (world.rank() == 1) {
    EXPECT_EQ(group.recv_tensor_dict({.src = 0}).at("elsewhere").tensor()->device(), default_device());
  }
  dict = group.broadcast_tensor_dict(dict);  // rank 1 gives none
  EXPECT_EQ(dict.at("elsewhere").tensor()->device(), world.rank() == 0 ? second_gpu(world) : default_device());
  if (world.rank() == 1) group.send_tensor_dict(dict, {.dst = 0});
  if (world.rank() == 0) {
    auto const received = group.recv_tensor_dict({.src = 1});
    EXPECT_EQ(received.at("elsewhere").tensor()->device(), second_gpu(world)) << "the GPU of its calls before";
    expect_all(*received.at("elsewhere").tensor(), 3);
  }
  world.barrier();
  return end_gpu_rank();
}

CROSSRANK_RANK_SCENARIO(device_messages_not_received) {
  auto const world = connect_gpu_rank();
  unsigned long long allocations = 0;
  for (int i = 0; i < 6; ++i) {
    auto group = world.split({{0, 1}});
    warm_up(group, 0, 1);
    if (group.rank() == 0) {
      for (int message = 0; message < 8; ++message) group.send(full(1), 1);
    }
    group.close();
    world.barrier();
    if (i == 1) allocations = emulated_count("cuMemAlloc_v2") - emulated_count("cuMemFree_v2");
  }
  EXPECT_LE(emulated_count("cuMemAlloc_v2") - emulated_count("cuMemFree_v2"), allocations);
  world.barrier();
  return end_gpu_rank();
}

/// Arguments: a function of the driver that fails on a rank, the rank, the error.
CROSSRANK_RANK_SCENARIO(device_messages_refused) {
  auto const world = connect_gpu_rank();
  static_cast<void>(full(0));
  world.barrier();
  if (std::to_string(world.rank()) == self.arguments.at(1))
    fail_call(self.arguments.at(0).c_str(), 1, std::stoi(self.arguments.at(2)));
  for (int i = 0; i < 10; ++i) warm_up(world, 0, 1);
  if (world.rank() == 0) {
    EXPECT_EQ(emulated_count("cuMemcpyDtoHAsync_v2"), 10U);
  }
  return end_gpu_rank();
}

/// The sender dies when its message is under way. The receiver finds it in a group that knows of no death yet.
CROSSRANK_RANK_SCENARIO(device_messages_dead_sender) {
  return end_with_verdict(self, [&] {
    auto const world = connect(fault_options());
    auto const group = world.split({{0, 1}});
    warm_up(group, 0, 1);
    if (world.rank() == 0) {
      group.send(full(1), 1);
      std::raise(SIGKILL);
    }
    EXPECT_THROW(world.barrier(), PeerLostError);
    static_cast<void>(receive(group, 0));
  });
}

/// Rank 1 holds all slots, because its stream is stuck, and dies.
CROSSRANK_RANK_SCENARIO(device_messages_dead_receiver) {
  auto const world = connect(fault_options());
  auto const messages = world.split({{0, 1, 2}});
  warm_up(messages, 0, 1);
  warm_up(messages, 0, 2);
  auto const through_host = [&] {
    reset_emulated_counts();
    auto const tensor = full(5);
    auto const before = copies_through_the_host();
    messages.send(tensor, 2);
    return copies_through_the_host() - before;
  };
  if (world.rank() == 0) {
    for (int i = 0; i < 8; ++i) messages.send(full(1), 1);
  }
  if (world.rank() == 1) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(full(-1));
    current_stream(default_device()).synchronize();
    block_stream(current_stream(default_device()));
    for (auto& tensor : tensors) messages.recv(tensor, 0);
  }
  world.barrier();
  if (world.rank() == 0) {
    EXPECT_GT(through_host(), 0U) << "rank 1 holds all slots";
  }
  if (world.rank() == 2) expect_all(receive(messages, 0), 5);
  world.barrier();
  if (world.rank() == 1) std::raise(SIGKILL);
  EXPECT_THROW(world.barrier(), PeerLostError);
  if (world.rank() == 0) {
    EXPECT_EQ(through_host(), 0U) << "rank 1 is dead";
  }
  if (world.rank() == 2) expect_all(receive(messages, 0), 5);
  if (world.rank() == 2) messages.send(full(0, 1), 0);
  if (world.rank() == 0) static_cast<void>(receive(messages, 2, 1));  // it has all messages of this rank
  return end_gpu_rank();
}

class DeviceMessages : public testing::TestWithParam<char const*> {};

TEST_P(DeviceMessages, stay_on_the_gpus_and_allocate_nothing) {
  expect_job_ok(2, "device_messages_warm", on_path(GetParam()));
}
TEST_P(DeviceMessages, leave_the_tensor_to_the_sender) {
  expect_job_ok(2, "device_messages_changed_at_once", on_path(GetParam()));
}
TEST_P(DeviceMessages, go_between_gpus_and_cpus) { expect_job_ok(2, "device_messages_mixed", on_path(GetParam())); }
TEST_P(DeviceMessages, of_another_size_are_dropped) {
  expect_job_ok(2, "device_messages_mismatch", on_path(GetParam()));
}
TEST_P(DeviceMessages, that_nobody_receives_end_with_their_group) {
  expect_job_ok(2, "device_messages_not_received", on_path(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Path, DeviceMessages, testing::Values("direct", "staged"),
                         [](auto const& one) { return std::string(one.param); });

TEST(DeviceMessageUsage, takes_one_gpu_in_a_group) { expect_job_ok(2, "device_messages_two_gpus"); }
TEST(DeviceMessageUsage, tells_the_receivers_of_a_dictionary_on_two_gpus) {
  expect_job_ok(2, "device_dictionaries_two_gpus");
}

class RefusedDeviceMessages : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(RefusedDeviceMessages, go_through_host_memory) {
  auto options = gpu_ranks();
  options.arguments = GetParam();
  expect_job_ok(2, "device_messages_refused", options);
}

INSTANTIATE_TEST_SUITE_P(By, RefusedDeviceMessages,
                         testing::Values(std::vector<std::string>{"cuIpcOpenMemHandle_v2", "1", "801"},
                                         std::vector<std::string>{"cuIpcGetMemHandle", "0", "801"}));

/// Eight slots need more than the GPU has.
TEST(DeviceMessageFaults, too_little_device_memory_leaves_host_memory) {
  auto options = gpu_ranks();
  options.environment["EMULATED_GPU_MEMORY"] = "2097152";
  options.arguments = {"cuIpcOpenMemHandle_v2", "0", "801"};
  expect_job_ok(2, "device_messages_refused", options);
}

TEST(DeviceMessageFaults, of_a_dead_sender_are_lost) {
  auto const job = run_ranks(2, "device_messages_dead_sender", gpu_ranks());
  auto const verdict = verdict_of(job.ranks.at(1));
  EXPECT_EQ(verdict.code, "peer_lost") << job.text();
  EXPECT_TRUE(verdict.blames_only(0)) << job.text();
  EXPECT_TRUE(job.leaks.empty()) << job.text();
}

TEST(DeviceMessageFaults, of_a_dead_receiver_give_their_memory_back) {
  auto const job = run_ranks(3, "device_messages_dead_receiver", gpu_ranks());
  EXPECT_TRUE(job.ranks.at(0).ok()) << job.text();
  EXPECT_TRUE(job.ranks.at(2).ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test
