#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/parallel.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/error_of.hpp"

/// How the ranks of a host compare their calls on GPU tensors: without waiting for each other.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto late = std::chrono::milliseconds(300);

/// Makes the communicator.
void use_once(Collective const& world) {
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  current_stream(default_device()).synchronize();
  world.barrier();
}

// ---------------------------------------------------------------- no wait

/// Rank 1 makes its calls only when it has heard that rank 0 has made all of its own.
CROSSRANK_RANK_SCENARIO(calls_of_a_rank_that_is_ahead) {
  auto const world = connect_gpu_rank();
  use_once(world);
  constexpr std::size_t calls = 200;
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < calls; ++i) tensors.push_back(filled(world, 10));
  auto word = Tensor::zeros({1}, Dtype::f32);
  if (self.rank == 1) world.recv(word, 0);
  auto requests = all_reduce_each(world, tensors);
  if (self.rank == 0) world.send(word, 1);
  for (auto& request : requests) request.wait();
  for (auto const& tensor : tensors) EXPECT_EQ(values(tensor), std::vector<float>(10, 3));
  return end_gpu_rank();
}

TEST(CallTable, lets_no_rank_wait_for_a_later_one) { expect_job_ok(2, "calls_of_a_rank_that_is_ahead"); }

/// Many more calls than the table has notes, by ranks of which one is slow now and then. Those that follow each other
/// differ, so that a note that is written over too early is a mismatch.
CROSSRANK_RANK_SCENARIO(calls_round_the_table) {
  auto const world = connect_gpu_rank();
  use_once(world);
  std::vector<Tensor> zeros;
  for (int i = 0; i < 3; ++i) zeros.push_back(Tensor::zeros({1 + i}, Dtype::f32, default_device()));
  for (std::size_t i = 0; i < 1'000; ++i) {
    if (i % 300 == 299 && as_size(self.rank) == i / 300 % 3) std::this_thread::sleep_for(late);
    world.all_reduce(zeros[i % 3]);
  }
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  EXPECT_EQ(values(tensor), std::vector<float>(4, 6));
  return end_gpu_rank();
}

TEST(CallTable, is_used_round_and_round) { expect_job_ok(3, "calls_round_the_table"); }

CROSSRANK_RANK_SCENARIO(calls_of_a_rank_that_is_far_ahead) {
  auto const world = connect({.backend = "shm", .timeout = std::chrono::seconds(2)});
  use_once(world);
  auto tensor = filled(world, 4);
  if (self.rank == 0) {
    auto const info = error_of<TimeoutError>([&] {
      for (int i = 0; i < 1'000; ++i) world.all_reduce(tensor);
    });
    EXPECT_THAT(info.failed_ranks, ElementsAre(1));
  } else {
    await_abort();
  }
  return end_gpu_rank();
}

TEST(CallTable, ends_the_wait_for_a_rank_that_does_not_follow) {
  expect_job_ok(2, "calls_of_a_rank_that_is_far_ahead");
}

// ---------------------------------------------------------------- disagreement

/// Rank 2 differs, and makes its call last. Its own call throws; nothing of it reaches the GPU.
CROSSRANK_RANK_SCENARIO(last_rank_differs) {
  auto const world = connect_gpu_rank();
  use_once(world);
  bool const differs = self.rank == 2;
  if (differs) std::this_thread::sleep_for(late);
  auto tensor = filled(world, differs ? 5 : 4);
  reset_emulated_counts();
  auto const info = error_of<MismatchError>([&] {
    world.all_reduce(tensor);
    EXPECT_FALSE(differs) << "the later rank throws at once";
    current_stream(default_device()).synchronize();
  });
  EXPECT_THAT(info.failed_ranks, ElementsAre(2));
  EXPECT_THAT(info.message, HasSubstr("rank 2 calls all_reduce on cuda F32 sum [5], but ranks 0-1 call all_reduce"));
  if (differs) {
    EXPECT_EQ(emulated_count("ncclAllReduce"), 0U);
  }
  return end_gpu_rank();
}

TEST(CallTable, stops_the_call_of_the_rank_that_comes_last) { expect_job_ok(3, "last_rank_differs"); }

/// A rank that makes a call on the CPU instead, before or after the others have enqueued theirs, then ends.
CROSSRANK_RANK_SCENARIO(call_on_the_cpu) {
  auto const world = connect_gpu_rank();
  use_once(world);
  bool const is_first = self.arguments.at(0) == "first";
  bool const on_cpu = self.rank == 1;
  if (on_cpu != is_first) std::this_thread::sleep_for(late);
  auto tensor = on_cpu ? Tensor::zeros({4}, Dtype::f32) : filled(world, 4);
  auto const begin = std::chrono::steady_clock::now();
  auto const info = error_of<MismatchError>([&] {
    world.all_reduce(tensor);
    current_stream(default_device()).synchronize();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "not by the deadline";
  EXPECT_THAT(info.message, HasSubstr("rank 1 calls all_reduce F32 sum [4]"));
  EXPECT_THAT(info.message, HasSubstr("on GPU tensors"));
  return end_gpu_rank();
}

TEST(CallTable, finds_a_rank_that_calls_on_the_cpu) {
  for (auto const* const order : {"first", "last"}) {
    auto options = gpu_ranks();
    options.arguments = {order};
    expect_job_ok(3, "call_on_the_cpu", std::move(options));
  }
}

CROSSRANK_RANK_SCENARIO(exchange_of_other_counts) {
  auto const world = connect_gpu_rank();
  use_once(world);
  // Rank 0 sends three elements to rank 1, which expects two.
  std::vector<std::int64_t> const send{1, self.rank == 0 ? 3 : 1};
  std::vector<std::int64_t> const receive{self.rank == 0 ? 1 : 2, 1};
  auto out = Tensor::empty({receive[0] + receive[1]}, Dtype::f32, default_device());
  auto const info = error_of<MismatchError>([&] {
    world.all_to_allv(out, filled(world, send[0] + send[1]), {.send = send, .receive = receive});
    current_stream(default_device()).synchronize();
  });
  EXPECT_THAT(info.failed_ranks, ElementsAre(0, 1));
  EXPECT_THAT(info.message, HasSubstr("rank 0 sends 12 bytes to rank 1, which expects 8"));
  return end_gpu_rank();
}

TEST(CallTable, compares_the_counts_of_an_exchange) { expect_job_ok(2, "exchange_of_other_counts"); }

// ---------------------------------------------------------------- calls on the CPU in between

/// Makes one of all kinds of calls on the CPU.
void call_on_cpu(Collective const& world, int kind) {
  auto const ranks = world.world_size();
  auto tensor = Tensor::zeros({4}, Dtype::f32);
  switch (kind) {
    case 0: world.barrier(); break;
    case 1: world.all_reduce(tensor); break;
    case 2: world.broadcast(tensor, Root{0}); break;
    case 3: {
      auto request = world.iall_reduce(tensor);
      auto on_gpu = filled(world, 2);
      world.all_reduce(on_gpu);
      request.wait();
      break;
    }
    case 4: {
      auto large = Tensor::zeros({300'000}, Dtype::f32);
      world.all_reduce(large);
      break;
    }
    case 5: static_cast<void>(world.split({{0}, {1, 2}})); break;
    case 6: static_cast<void>(world.broadcast_object<std::string>("text", Root{1})); break;
    case 7: static_cast<void>(get_tensors_parallel(tensor, world).take()); break;
    default: {
      auto all = Tensor::zeros({4 * ranks}, Dtype::f32);
      world.all_gather(all, tensor);
      break;
    }
  }
}

/// Collectives on the CPU and on GPUs take turns, while ranks are late by more than the watchdog's interval.
CROSSRANK_RANK_SCENARIO(calls_on_both) {
  auto const world = connect_gpu_rank();
  use_once(world);
  auto const seed = std::stoul(self.arguments.at(0));
  std::mt19937 same(seed);                                        // on all ranks
  std::mt19937 own(seed + 1 + static_cast<unsigned>(self.rank));  // of this rank
  for (int i = 0; i < 60; ++i) {
    if (same() % 3 == 0) {
      auto tensor = filled(world, 4);
      world.all_reduce(tensor);
      if (same() % 2 == 0) {
        EXPECT_EQ(values(tensor), std::vector<float>(4, 6));
      }
    } else {
      call_on_cpu(world, static_cast<int>(same() % 9));
    }
    if (own() % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  return end_gpu_rank();
}

TEST(CallTable, knows_calls_on_the_cpu_from_disagreement) {
  auto const seed = std::to_string(std::random_device{}());
  SCOPED_TRACE("seed " + seed);
  auto options = gpu_ranks();
  options.arguments = {seed};
  expect_job_ok(3, "calls_on_both", std::move(options));
}

}  // namespace
}  // namespace crossrank::test
