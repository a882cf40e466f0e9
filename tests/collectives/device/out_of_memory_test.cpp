#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/timeouts.hpp"

/// Rank 1 has no memory for its part of a call. The other ranks would wait for it.
namespace crossrank::test {
namespace {

constexpr std::int64_t elements = 1 << 20;
constexpr int out_of_memory = 2;
constexpr int without_memory = 1;  // the rank

/// Takes what is left of the GPU's memory.
std::vector<Tensor> fill_gpu() {
  std::vector<Tensor> taken;
  for (std::int64_t bytes = std::int64_t{64} << 20; bytes >= 4'096;) {
    try {
      taken.push_back(Tensor::empty({bytes}, Dtype::u8, default_device()));
    } catch (UnavailableError const&) {
      bytes /= 2;
    }
  }
  return taken;
}

std::string bytes_text(std::int64_t bytes) { return std::to_string(bytes) + " bytes requested"; }

/// Expects that the call fails on all ranks, soon, with errors that name the rank and the bytes.
void expect_end(Collective const& world, std::int64_t bytes, std::function<void()> const& call) {
  auto const begun = std::chrono::steady_clock::now();
  try {
    call();
    current_stream(default_device()).synchronize();  // a rank that was faster has enqueued its part
    ADD_FAILURE() << "no error";
  } catch (UnavailableError const& e) {
    EXPECT_EQ(world.rank(), without_memory) << e.what();
    EXPECT_EQ(e.rank(), without_memory);
    EXPECT_EQ(e.info().got, bytes_text(bytes));
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(without_memory));
    EXPECT_FALSE(e.group_usable());
  } catch (PeerLostError const& e) {
    EXPECT_NE(world.rank(), without_memory) << e.what();
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(without_memory));
    EXPECT_THAT(e.what(), testing::HasSubstr(bytes_text(bytes)));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, scaled_timeout(std::chrono::seconds(10)));
}

/// Joins a job whose group has made its first collective on GPU tensors.
Collective connect_after_first_call(RankSelf const& self) {
  auto world = connect_gpu_rank();
  auto tensor = filled(world, 8);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), self.arguments.at(0));
  world.barrier();
  return world;
}

void run_on(std::string const& backend, std::string_view scenario) {
  auto options = gpu_ranks();
  options.arguments = {backend};
  if (backend == "staged") options.environment["CROSSRANK_DEVICE"] = "staged";
  expect_job_ok(3, scenario, std::move(options));
}

class OutOfDeviceMemory : public testing::TestWithParam<char const*> {};
INSTANTIATE_TEST_SUITE_P(Backends, OutOfDeviceMemory, testing::Values("nccl", "staged"),
                         [](auto const& param) { return std::string(param.param); });

CROSSRANK_RANK_SCENARIO(oom_scratch) {
  auto const world = connect_after_first_call(self);
  auto tensor = filled(world, 3 * elements);
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  expect_end(world, 4 * 3 * elements, [&] { world.all_reduce(tensor, ReduceOp::sum, ReduceOrder::rank); });
  EXPECT_THROW(world.barrier(), PeerLostError);
  return end_gpu_rank();
}

TEST(OutOfDeviceMemoryForScratch, ends_a_reduction_in_rank_order_on_all_ranks) { run_on("nccl", "oom_scratch"); }

CROSSRANK_RANK_SCENARIO(oom_scratch_of_request) {
  auto const world = connect_after_first_call(self);
  auto tensor = filled(world, 3 * elements);
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  expect_end(world, 4 * 3 * elements, [&] { world.iall_reduce(tensor, ReduceOp::sum, ReduceOrder::rank).wait(); });
  return end_gpu_rank();
}

TEST(OutOfDeviceMemoryForScratch, ends_a_non_blocking_reduction_on_all_ranks) {
  run_on("nccl", "oom_scratch_of_request");
}

CROSSRANK_RANK_SCENARIO(oom_fused) {
  auto const world = connect_after_first_call(self);
  std::vector<Tensor> tensors{filled(world, elements), filled(world, 2 * elements)};
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  expect_end(world, 4 * 3 * elements, [&] { world.iall_reduce(std::span<Tensor>(tensors)).wait(); });
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_the_buffer_of_a_fused_call_ends_it_on_all_ranks) { run_on(GetParam(), "oom_fused"); }

/// The inputs fit, and the buffer of the results does not.
CROSSRANK_RANK_SCENARIO(oom_fused_results) {
  auto const world = connect_after_first_call(self);
  std::vector<Tensor> const ins{filled(world, elements), filled(world, 2 * elements)};
  std::vector<Tensor> outs{filled(world, 3 * elements), filled(world, 6 * elements)};
  auto spare = Tensor::empty({5 * elements}, Dtype::f32, default_device());
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  spare = {};
  expect_end(world, 4 * 9 * elements,
             [&] { world.iall_gather(std::span<Tensor>(outs), std::span<Tensor const>(ins)).wait(); });
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_the_results_of_a_fused_call_ends_it_on_all_ranks) {
  run_on(GetParam(), "oom_fused_results");
}

CROSSRANK_RANK_SCENARIO(oom_staging) {
  auto const world = connect_after_first_call(self);
  auto tensor = filled(world, elements / 2);
  if (world.rank() == without_memory) fail_call("cuMemHostAlloc", 1, out_of_memory);
  expect_end(world, std::int64_t{2} << 20, [&] { world.all_reduce(tensor); });
  return end_gpu_rank();
}

TEST(OutOfPageLockedMemory, ends_a_staged_collective_on_all_ranks) { run_on("staged", "oom_staging"); }

/// The second piece of a long tensor has no buffer. Its copy starts before the exchange of the first one.
CROSSRANK_RANK_SCENARIO(oom_second_piece) {
  auto const world = connect_after_first_call(self);
  auto tensor = filled(world, 3 * elements);
  if (world.rank() == without_memory) fail_call("cuMemHostAlloc", 3, out_of_memory);
  expect_end(world, std::int64_t{4} << 20, [&] { world.all_reduce(tensor); });
  return end_gpu_rank();
}

TEST(OutOfPageLockedMemory, ends_a_staged_collective_of_several_pieces_on_all_ranks) {
  run_on("staged", "oom_second_piece");
}

CROSSRANK_RANK_SCENARIO(oom_send) {
  auto const world = connect_after_first_call(self);
  auto tensor = filled(world, elements / 2);
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  if (world.rank() == without_memory) fail_call("cuMemHostAlloc", 1, out_of_memory);
  expect_end(world, std::int64_t{2} << 20, [&] {
    if (world.rank() == 0) return world.recv(tensor, without_memory);
    if (world.rank() == without_memory) return world.send(tensor, 0);
    world.barrier();
  });
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_the_payload_of_a_message_reaches_the_receiver) { run_on(GetParam(), "oom_send"); }

GroupCoordinator device_group(Collective const& world) {
  return GroupCoordinator::create(world, {{0, 1, 2}}, {.name = "tp", .device_communicator = true});
}

CROSSRANK_RANK_SCENARIO(oom_recv) {
  auto const world = connect_after_first_call(self);
  auto const group = device_group(world);
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  if (world.rank() == 0) {
    group.send(filled(world, elements), without_memory);
  } else if (world.rank() == without_memory) {
    try {
      static_cast<void>(group.recv({elements}, Dtype::f32, 0));
      ADD_FAILURE() << "no error";
    } catch (UnavailableError const& e) {
      EXPECT_EQ(e.operation(), "recv");
      EXPECT_EQ(e.rank(), without_memory);
      EXPECT_EQ(e.info().got, bytes_text(4 * elements));
      EXPECT_TRUE(e.group_usable());
    }
  }
  world.barrier();
  auto own = Tensor::of<float>({1}, {1});
  group.device_group().all_reduce(own);
  EXPECT_EQ(own.item<float>(), 3);
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_a_received_tensor_leaves_sender_and_group_usable) { run_on(GetParam(), "oom_recv"); }

CROSSRANK_RANK_SCENARIO(oom_gathered) {
  auto const world = connect_after_first_call(self);
  auto const group = device_group(world);
  auto const tensor = filled(world, elements);
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  expect_end(world, 3 * 4 * elements, [&] { static_cast<void>(group.all_gather(tensor)); });
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_the_result_of_the_coordinator_ends_its_group_on_all_ranks) {
  run_on(GetParam(), "oom_gathered");
}

TensorDict long_dict(Collective const& world) {
  TensorDict dict;
  dict.set("long", filled(world, elements));
  dict.set("short", filled(world, 2));
  return dict;
}

CROSSRANK_RANK_SCENARIO(oom_dict_broadcast) {
  auto const world = connect_after_first_call(self);
  auto const group = device_group(world);
  auto dict = world.rank() == 0 ? long_dict(world) : TensorDict{};
  auto const taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  expect_end(world, 4 * elements, [&] { static_cast<void>(group.broadcast_tensor_dict(dict)); });
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_a_broadcast_dictionary_ends_the_group_on_all_ranks) {
  run_on(GetParam(), "oom_dict_broadcast");
}

CROSSRANK_RANK_SCENARIO(oom_dict_receive) {
  auto const world = connect_after_first_call(self);
  auto const group = device_group(world);
  auto taken = world.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  if (world.rank() == 0) {
    for (int i = 0; i < 2; ++i) group.send_tensor_dict(long_dict(world), {.dst = without_memory});
  } else if (world.rank() == without_memory) {
    try {
      static_cast<void>(group.recv_tensor_dict({.src = 0}));
      ADD_FAILURE() << "no error";
    } catch (UnavailableError const& e) {
      EXPECT_EQ(e.operation(), "recv_tensor_dict");
      EXPECT_EQ(e.rank(), without_memory);
      EXPECT_EQ(e.info().got, bytes_text(4 * elements));
      EXPECT_TRUE(e.group_usable());
    }
    taken.clear();
    auto const next = group.recv_tensor_dict({.src = 0});
    EXPECT_THAT(values(*next.at("long").tensor()), testing::Each(1));
  }
  world.barrier();
  return end_gpu_rank();
}

TEST_P(OutOfDeviceMemory, for_a_received_dictionary_leaves_sender_and_group_usable) {
  run_on(GetParam(), "oom_dict_receive");
}

/// Ranks 0 and 1 send parts of a dictionary to ranks 3 and 2, which join them.
CROSSRANK_RANK_SCENARIO(oom_dict_parts) {
  auto const world = connect_gpu_rank();
  auto const pair = world.split({{0, 1}, {3, 2}});
  auto const pipeline = GroupCoordinator::create(world, {{0, 3}, {1, 2}}, {.name = "pp", .device_communicator = true});
  if (world.rank() < 2) {
    pipeline.send_tensor_dict(long_dict(world), {.dst = 1, .all_gather_group = pair});
    world.barrier();
    return end_gpu_rank();
  }
  auto const taken = pair.rank() == without_memory ? fill_gpu() : std::vector<Tensor>{};
  try {
    static_cast<void>(pipeline.recv_tensor_dict({.src = 0, .all_gather_group = pair}));
    ADD_FAILURE() << "no error";
  } catch (UnavailableError const& e) {
    EXPECT_EQ(pair.rank(), without_memory) << e.what();
    EXPECT_EQ(e.info().got, bytes_text(4 * elements));
  } catch (PeerLostError const& e) {
    EXPECT_NE(pair.rank(), without_memory) << e.what();
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(without_memory));
    EXPECT_THAT(e.what(), testing::HasSubstr(bytes_text(4 * elements)));
  }
  world.barrier();
  return end_gpu_rank();
}

TEST(OutOfDeviceMemoryForParts, reaches_the_ranks_that_join_them) { expect_job_ok(4, "oom_dict_parts"); }

}  // namespace
}  // namespace crossrank::test
