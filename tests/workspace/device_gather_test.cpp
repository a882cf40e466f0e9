// Gathers and workspaces with tensors on GPUs. Each rank is a process with its own emulated driver.
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/workspace/state_samples.hpp"

namespace crossrank {
namespace {

using test::calls;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);
constexpr std::int64_t long_elements = (9 << 20) / 4 + 1;  // three pieces, the last one short

/// Returns what a rank contributes, on the CPU.
RankState on_host(int rank) {
  auto state = test::sample_state(rank);
  std::vector<float> many(as_size(long_elements));
  std::iota(many.begin(), many.end(), static_cast<float>(rank));
  state.weights.insert_or_assign("long", Tensor::of(many, {long_elements}));
  state.weights.insert_or_assign("bytes", Tensor::of<std::uint8_t>({1, 2, 3, 4, 5, 6, 7}, {7}));
  return state;
}

/// Returns the same state with most tensors on the GPU, one of them a view that begins inside its memory.
RankState on_gpu(int rank) {
  auto state = on_host(rank);
  for (auto& [name, tensor] : state.weights) {
    if (name != "scale") tensor = tensor.to(gpu);
  }
  auto const whole = concat(std::vector{state.weights.at("bytes"), state.weights.at("bytes")});
  state.weights.at("bytes") = whole.narrow(0, 7, 7);
  return state;
}

/// Compares a state that has arrived on `device`.
void expect_arrived(RankState const& got, int rank, Device device) {
  auto back = got;
  for (auto& [name, tensor] : back.weights) {
    if (!tensor.defined()) continue;
    EXPECT_EQ(tensor.device(), device) << name;
    tensor = tensor.to(Device::cpu());
  }
  test::expect_same(back, on_host(rank));
}

GatherOptions options_of(test::RankSelf const& self) {
  GatherOptions options;
  if (!self.arguments.empty()) options.workspace_path = self.arguments.front();
  return options;
}

/// Runs a scenario on several ranks, with emulated GPUs.
test::JobOutcome run_on_gpus(int ranks, std::string_view scenario, test::RankOptions options = {}) {
  options.environment["CROSSRANK_CUDA_LIBRARY"] = CROSSRANK_TEST_CUDA;
  return test::run_ranks(ranks, scenario, std::move(options));
}

CROSSRANK_RANK_SCENARIO(gathers_gpu_states) {
  {
    auto const world = connect();
    for (auto const device : {Device::cpu(), gpu}) {
      auto options = options_of(self);
      options.to = device;
      auto states = get_configs_parallel(on_gpu(self.rank), world, options).take();
      EXPECT_EQ(states.size(), self.rank == 0 ? as_size(self.world_size) : 0U);
      for (auto const& [rank, state] : states) expect_arrived(state, rank, device);
      // Only rank 0 has its tensor on the CPU.
      auto const mine = self.rank == 0 ? on_host(0) : on_gpu(self.rank);
      auto tensors = get_tensors_parallel(mine.weights.at("long"), world, options).take();
      for (auto const& tensor : tensors) EXPECT_EQ(tensor.device(), device);
      if (self.rank == 0) {
        EXPECT_EQ(concat(tensors).numel(), self.world_size * long_elements);
      }
    }
    world.barrier();
  }
  current_stream(gpu).synchronize();
  cuda::trim(gpu);
  EXPECT_EQ(test::live("allocation"), 0U);
  EXPECT_LE(test::live("host"), 2U) << "page locks must end with the mapping; two buffers stay";
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

/// Three threads as ranks on two hosts: rank 1 sends a packed contribution, rank 2 publishes in the receiver's memory.
CROSSRANK_RANK_SCENARIO(gathers_between_hosts) {
  test::run_message_ranks(3,
                          [](Collective const& world, test::MemoryHub&) {
                            auto const mine = on_gpu(world.rank());
                            for (auto const device : {Device::cpu(), gpu}) {
                              auto states = get_configs_parallel(mine, world, {.to = device}).take();
                              EXPECT_EQ(states.size(), world.rank() == 0 ? 3U : 0U);
                              for (auto const& [rank, state] : states) expect_arrived(state, rank, device);
                            }
                          },
                          {.node_memory = true, .arena_cap = std::uint64_t{256} << 20});
  EXPECT_EQ(test::reports(), 0U);
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(DeviceGatherBetweenHosts, gives_the_bytes_of_the_cpu) {
  auto const job = run_on_gpus(  // three threads that copy
      1, "gathers_between_hosts", {.environment = {{"EMULATED_GPU_KEPT", "pool,stream:3,host:6,event:6"}}});
  EXPECT_TRUE(job.ok()) << job.text();
}

class DeviceGather : public testing::TestWithParam<int> {};

TEST_P(DeviceGather, through_memory_gives_the_bytes_of_the_cpu) {
  auto const job = run_on_gpus(GetParam(), "gathers_gpu_states");
  EXPECT_TRUE(job.ok()) << job.text();
}

TEST_P(DeviceGather, through_files_gives_the_bytes_of_the_cpu) {
  test::TemporaryDirectory const directory;
  auto const job = run_on_gpus(GetParam(), "gathers_gpu_states", {.arguments = {directory.path().string()}});
  EXPECT_TRUE(job.ok()) << job.text();
}

/// A slow GPU shows a wait that is missing: whoever does not wait sees old bytes.
TEST_P(DeviceGather, waits_for_a_slow_gpu) {
  test::RankOptions const slow{.environment = {{"EMULATED_GPU_DELAY_US", "20000"}}};
  auto const memory = run_on_gpus(GetParam(), "gathers_gpu_states", slow);
  EXPECT_TRUE(memory.ok()) << memory.text();
  test::TemporaryDirectory const directory;
  auto with_files = slow;
  with_files.arguments = {directory.path().string()};
  auto const files = run_on_gpus(GetParam(), "gathers_gpu_states", with_files);
  EXPECT_TRUE(files.ok()) << files.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceGather, testing::Values(1, 2, 4));

CROSSRANK_RANK_SCENARIO(counts_calls_of_a_warm_gather) {
  auto const world = connect();
  auto const mine = on_gpu(self.rank);
  auto const gather = [&] { get_configs_parallel(mine, world).close(); };
  for (int warm_up = 0; warm_up < 3; ++warm_up) gather();
  world.barrier();
  test::reset_calls();
  gather();
  bool const writes = self.rank != 0;
  EXPECT_EQ(calls("cuMemcpyDtoHAsync_v2"), writes ? 4U : 0U);
  EXPECT_EQ(calls("cuEventRecord"), writes ? 1U : 0U) << "one event for all tensors of a state";
  for (auto const* call : {"cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemHostAlloc", "cuMemAllocFromPoolAsync",
                           "cuMemAlloc_v2", "cuEventCreate", "cuMemcpyHtoDAsync_v2", "pageable_copy"}) {
    EXPECT_EQ(calls(call), 0U) << call;
  }
  world.barrier();
  return 0;
}

CROSSRANK_RANK_SCENARIO(counts_streams_of_warm_file_gathers) {
  auto const world = connect();
  auto const mine = on_gpu(self.rank);
  auto const gather = [&] { get_configs_parallel(mine, world, options_of(self)).close(); };
  gather();
  world.barrier();
  test::reset_calls();
  for (int round = 0; round < 5; ++round) gather();
  EXPECT_EQ(calls("cuStreamCreateWithPriority"), 0U);
  EXPECT_EQ(calls("cuStreamDestroy_v2"), 0U);
  world.barrier();
  return 0;
}

TEST(DeviceGatherCalls, a_warm_gather_through_files_makes_no_stream) {
  test::TemporaryDirectory const directory;
  auto const job = run_on_gpus(2, "counts_streams_of_warm_file_gathers", {.arguments = {directory.path().string()}});
  EXPECT_TRUE(job.ok()) << job.text();
}

TEST(DeviceGatherCalls, a_warm_gather_allocates_and_registers_nothing) {
  auto const job = run_on_gpus(2, "counts_calls_of_a_warm_gather");
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(gathers_without_page_locks) {
  auto const world = connect();
  auto states = get_configs_parallel(on_gpu(self.rank), world).take();
  for (auto const& [rank, state] : states) expect_arrived(state, rank, Device::cpu());
  world.barrier();
  return 0;
}

TEST(DeviceGatherCalls, memory_that_cannot_be_page_locked_is_copied_through_buffers) {
  auto const job = run_on_gpus(2, "gathers_without_page_locks",
                               {.rank_environment = {{1, {{"EMULATED_GPU_FAIL", "cuMemHostRegister_v2:1:801"}}}}});
  EXPECT_TRUE(job.ok()) << job.text();
}

/// The contributing rank fails with `E`, and rank 0 learns of it. The group stays usable.
template <class E>
void expect_failure_on_rank_1(Collective const& world, GatherOptions const& options, Tensor const& mine,
                              char const* says) {
  try {
    get_tensors_parallel({{"w", mine}}, world, options).close();
    ADD_FAILURE() << "no error";
  } catch (RemoteError const& e) {
    EXPECT_EQ(world.rank(), 0);
    EXPECT_THAT(e.what(), HasSubstr(says));
  } catch (E const& e) {
    EXPECT_EQ(world.rank(), 1);
    EXPECT_THAT(e.what(), HasSubstr(says));
  }
}

CROSSRANK_RANK_SCENARIO(gathers_from_a_captured_stream) {
  auto const world = connect();
  auto const options = options_of(self);
  auto const mine = Tensor::zeros({1000}, Dtype::f32, gpu);
  auto const stream = Stream::create(gpu);
  {
    StreamGuard const guard(stream);
    test::Capture capture(self.rank == 1 ? stream.native() : nullptr);
    expect_failure_on_rank_1<UsageError>(world, options, mine, "captured");
    EXPECT_TRUE(capture.end()) << "the refused call must leave the capture valid";
  }
  EXPECT_EQ(get_tensors_parallel(mine, world, options).take().size(), self.rank == 0 ? 2U : 0U);
  return 0;
}

CROSSRANK_RANK_SCENARIO(gathers_from_a_failing_gpu) {
  auto const world = connect();
  auto const options = options_of(self);
  auto const mine = Tensor::zeros({1000}, Dtype::f32, gpu);
  static_cast<void>(mine.to(Device::cpu()));
  if (self.rank == 1) test::fail_call("cuEventQuery", 1, 700);
  expect_failure_on_rank_1<BackendError>(world, options, mine, "cuEventQuery");
  EXPECT_EQ(get_tensors_parallel(mine, world, options).take().size(), self.rank == 0 ? 2U : 0U);
  return 0;
}

TEST(DeviceGatherErrors, reach_all_ranks_through_memory_and_files) {
  for (auto const* scenario : {"gathers_from_a_captured_stream", "gathers_from_a_failing_gpu"}) {
    auto const memory = run_on_gpus(2, scenario);
    EXPECT_TRUE(memory.ok()) << scenario << memory.text();
    test::TemporaryDirectory const directory;
    auto const files = run_on_gpus(2, scenario, {.arguments = {directory.path().string()}});
    EXPECT_TRUE(files.ok()) << scenario << files.text();
  }
}

CROSSRANK_RANK_SCENARIO(gathers_more_than_the_gpu_holds) {
  auto const world = connect();
  auto options = options_of(self);
  options.to = gpu;
  auto const mine = Tensor::zeros({8 << 20}, Dtype::u8);
  try {
    static_cast<void>(get_tensors_parallel(mine, world, options).take());
    ADD_FAILURE() << "no error";
  } catch (UnavailableError const& e) {
    EXPECT_EQ(self.rank, 0);
    EXPECT_THAT(e.what(), HasSubstr("not enough memory"));
  } catch (PeerLostError const& e) {
    EXPECT_EQ(self.rank, 1);
    EXPECT_THAT(e.what(), HasSubstr("not enough memory"));
  }
  EXPECT_EQ(test::live("allocation"), 0U);
  return 0;
}

TEST(DeviceGatherErrors, a_full_gpu_of_the_receiver_reaches_all_ranks) {
  test::RankOptions const small{.environment = {{"EMULATED_GPU_MEMORY", "4194304"}}};
  auto const memory = run_on_gpus(2, "gathers_more_than_the_gpu_holds", small);
  EXPECT_TRUE(memory.ok()) << memory.text();
  test::TemporaryDirectory const directory;
  auto with_files = small;
  with_files.arguments = {directory.path().string()};
  auto const files = run_on_gpus(2, "gathers_more_than_the_gpu_holds", with_files);
  EXPECT_TRUE(files.ok()) << files.text();
}

CROSSRANK_RANK_SCENARIO(writes_and_reads_states_of_gpus) {
  auto const world = connect();
  SharedMemoryWorkspace memory(world);
  NFSWorkspace files(self.arguments.front(), {.rank = self.rank});
  memory.write_configs_and_weights(on_host(self.rank).config, on_gpu(self.rank).weights);
  files.write_configs_and_weights(on_host(self.rank).config, on_gpu(self.rank).weights);
  current_stream(gpu).synchronize();
  EXPECT_EQ(test::live("allocation"), 0U) << "a workspace keeps no tensor on a GPU";
  world.barrier();
  for (auto const device : {Device::cpu(), gpu}) {
    auto const peer = self.world_size - 1 - self.rank;
    auto const there = memory.read_configs_and_weights_from_rank(peer, {.to = device});
    expect_arrived(there.value(), peer, device);
    expect_arrived(files.read_configs_and_weights_from_rank(peer, {.to = device}).value(), peer, device);
  }
  world.barrier();
  files.clean();
  return 0;
}

CROSSRANK_RANK_SCENARIO(writes_torch_archives_of_gpus) {
  auto weights = on_gpu(0).weights;
  weights.erase("absent");
  NFSWorkspace files(self.arguments.front(), {.rank = 0, .format = StateFormat::torch});
  files.write_configs_and_weights(1, weights);
  auto const state = files.read_configs_and_weights_from_rank(0).value();
  for (auto const& [name, tensor] : state.weights) {
    auto const expected = on_host(0).weights.at(name).clone();
    EXPECT_TRUE(std::equal(tensor.bytes().begin(), tensor.bytes().end(), expected.bytes().begin())) << name;
  }
  files.clean();
  return 0;
}

TEST(DeviceWorkspaces, write_tensors_of_gpus_and_read_them_back_there) {
  test::TemporaryDirectory const directory;
  auto const job = run_on_gpus(2, "writes_and_reads_states_of_gpus", {.arguments = {directory.path().string()}});
  EXPECT_TRUE(job.ok()) << job.text();
  auto const torch = run_on_gpus(1, "writes_torch_archives_of_gpus", {.arguments = {directory.path().string()}});
  EXPECT_TRUE(torch.ok()) << torch.text();
}

CROSSRANK_RANK_SCENARIO(trims_page_locked_memory) {
  auto const world = connect();
  SharedMemoryWorkspace const memory(world);
  for (int round = 0; round < 2; ++round) {
    auto states = get_configs_parallel(on_gpu(self.rank), world).take();
    for (auto const& [rank, state] : states) expect_arrived(state, rank, Device::cpu());
    states.clear();
    world.barrier();
    static_cast<void>(memory.trim());
    if (self.rank != 0) {  // rank 0 has staging buffers
      EXPECT_EQ(test::live("host"), 0U) << "pages that go back to the system must not stay page-locked";
    }
    world.barrier();
  }
  EXPECT_EQ(test::reports(), 0U);
  return 0;
}

TEST(DeviceWorkspaces, trimmed_memory_is_unlocked_and_locked_again) {
  auto const job = run_on_gpus(2, "trims_page_locked_memory");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank
