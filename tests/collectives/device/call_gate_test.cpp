#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

/// How the ranks of several hosts compare their calls on GPU tensors: while their streams wait, and not their hosts.
/// The ranks are threads with a GPU each, two on each host.
namespace crossrank::test::call_gate_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int rank_count = 4;
constexpr auto late = std::chrono::milliseconds(300);

Stream stream_of(Collective const& world) { return current_stream(gpu_of_thread(world)); }

/// Makes the communicator.
void use_once(Collective const& world) {
  auto tensor = filled_on_own_gpu(world, 4);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), "nccl");
  stream_of(world).synchronize();
  world.barrier();
}

/// Runs the body on ranks of two hosts, after they have made the communicator.
int run_on_hosts(RankSelf const& self, MessageBody const& body, std::chrono::milliseconds timeout = step_timeout) {
  run_message_ranks(rank_count,
                    [&](Collective const& world, MemoryHub& hub) {
                      use_once(world);
                      body(world, hub);
                    },
                    {.timeout = timeout, .node_memory = self.arguments.at(0) == "composite", .ranks_per_host = 2});
  return end_gpu_rank();
}

class CallGate : public testing::TestWithParam<char const*> {
 protected:
  static void run(std::string_view scenario, std::vector<std::string> more = {}) {
    auto options = gpu_ranks();
    options.arguments = {GetParam()};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    expect_job_ok(1, scenario, std::move(options));
  }
};

// ---------------------------------------------------------------- no wait of the host

/// The ranks of the second host make their calls only when those of the first one have made all of theirs.
CROSSRANK_RANK_SCENARIO(gate_of_a_host_that_is_ahead) {
  std::atomic<int> ahead_count{0};
  return run_on_hosts(self, [&](Collective const& world, MemoryHub&) {
    constexpr std::size_t calls = 200;
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < calls; ++i) tensors.push_back(filled_on_own_gpu(world, 10));
    bool const is_ahead = world.rank() < 2;
    while (!is_ahead && ahead_count < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto requests = all_reduce_each(world, tensors);
    if (is_ahead) {
      EXPECT_FALSE(stream_of(world).query());
      ++ahead_count;
    }
    for (auto& request : requests) request.wait();
    for (auto const& tensor : tensors) EXPECT_EQ(values(tensor), std::vector<float>(10, 10));
  });
}

TEST_P(CallGate, lets_no_host_wait_for_another_one) { run("gate_of_a_host_that_is_ahead"); }

CROSSRANK_RANK_SCENARIO(gate_of_a_host_that_is_far_ahead) {
  std::atomic<int> ended_count{0};
  return run_on_hosts(
      self,
      [&](Collective const& world, MemoryHub&) {
        auto tensor = filled_on_own_gpu(world, 4);
        if (world.rank() < 2) {
          auto const info = error_of<TimeoutError>([&] {
            for (int i = 0; i < 1'000; ++i) world.all_reduce(tensor);
          });
          EXPECT_FALSE(info.failed_ranks.empty());
          for (int const rank : info.failed_ranks) EXPECT_GE(rank, 2) << info.message;
          EXPECT_THROW(stream_of(world).synchronize(), TimeoutError);
        }
        ++ended_count;
        while (ended_count < rank_count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      std::chrono::seconds(3));
}

TEST_P(CallGate, ends_the_wait_for_a_host_that_does_not_follow) { run("gate_of_a_host_that_is_far_ahead"); }

CROSSRANK_RANK_SCENARIO(gate_before_the_work) {
  return run_on_hosts(self, [&](Collective const& world, MemoryHub&) {
    auto tensor = filled_on_own_gpu(world, 4);
    world.barrier();
    auto const starts = emulated_count("nccl_kernel_start");
    world.barrier();
    if (world.rank() == 3) {
      std::this_thread::sleep_for(late);
      EXPECT_EQ(emulated_count("nccl_kernel_start"), starts) << "the other ranks have enqueued the call";
    }
    world.all_reduce(tensor);
    EXPECT_EQ(values(tensor), std::vector<float>(4, 10));
  });
}

TEST_P(CallGate, holds_the_work_of_a_call) { run("gate_before_the_work"); }

// ---------------------------------------------------------------- disagreement

/// Expects that `call` fails on all ranks with the same mismatch, before the deadline, and ends the streams.
void expect_mismatch(RankSelf const& self, std::function<void(Collective const&)> const& call,
                     std::vector<int> const& ranks, std::string const& message) {
  std::array<std::string, rank_count> messages{};
  run_on_hosts(self, [&](Collective const& world, MemoryHub&) {
    auto const begin = std::chrono::steady_clock::now();
    auto const info = error_of<MismatchError>([&] {
      call(world);
      stream_of(world).synchronize();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, step_timeout / 2) << "not by the deadline";
    EXPECT_EQ(info.failed_ranks, ranks);
    EXPECT_THAT(info.message, HasSubstr(message));
    EXPECT_FALSE(info.group_usable);
    messages.at(as_size(world.rank())) = info.message;
    auto tensor = filled_on_own_gpu(world, 4);
    EXPECT_THROW(world.all_reduce(tensor), MismatchError);
    EXPECT_THROW(world.barrier(), MismatchError);
  });
  for (auto const& one : messages) EXPECT_EQ(one, messages.front());
}

CROSSRANK_RANK_SCENARIO(gate_of_other_shapes) {
  bool const is_first = self.arguments.at(1) == "first";
  expect_mismatch(
      self,
      [&](Collective const& world) {
        bool const differs = world.rank() == 3;
        if (differs != is_first) std::this_thread::sleep_for(late);
        auto tensor = filled_on_own_gpu(world, differs ? 5 : 4);
        world.all_reduce(tensor);
      },
      {3}, "rank 3 calls all_reduce on cuda F32 sum [5], but ranks 0-2 call all_reduce");
  return end_gpu_rank();
}

TEST_P(CallGate, ends_the_streams_of_ranks_that_make_different_calls) {
  for (auto const* const order : {"first", "last"}) run("gate_of_other_shapes", {order});
}

CROSSRANK_RANK_SCENARIO(gate_of_a_call_on_the_cpu) {
  expect_mismatch(
      self,
      [](Collective const& world) {
        auto tensor = world.rank() == 2 ? Tensor::zeros({4}, Dtype::f32) : filled_on_own_gpu(world, 4);
        world.all_reduce(tensor);
      },
      {2}, "rank 2 calls all_reduce F32 sum [4]");
  return end_gpu_rank();
}

TEST_P(CallGate, finds_a_rank_that_calls_on_the_cpu) { run("gate_of_a_call_on_the_cpu"); }

CROSSRANK_RANK_SCENARIO(gate_of_other_counts) {
  // Rank 0 sends three elements to rank 2, which expects two.
  expect_mismatch(
      self,
      [](Collective const& world) {
        std::vector<std::int64_t> const send{1, 1, world.rank() == 0 ? 3 : 1, 1};
        std::vector<std::int64_t> const receive{world.rank() == 2 ? 2 : 1, 1, 1, 1};
        auto out = Tensor::empty({3 + receive[0]}, Dtype::f32, gpu_of_thread(world));
        world.all_to_allv(out, filled_on_own_gpu(world, 3 + send[2]), {.send = send, .receive = receive});
      },
      {0, 2}, "rank 0 sends 12 bytes to rank 2, which expects 8");
  return end_gpu_rank();
}

TEST_P(CallGate, compares_the_counts_of_an_exchange) { run("gate_of_other_counts"); }

// ---------------------------------------------------------------- lost ranks and groups that end

CROSSRANK_RANK_SCENARIO(gate_of_a_lost_rank) {
  std::atomic<int> enqueued_count{0};
  std::atomic<int> error_count{0};
  run_on_hosts(
      self,
      [&](Collective const& world, MemoryHub& hub) {
        if (world.rank() == 2) {
          while (enqueued_count < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          hub.disconnect(2);
          while (error_count < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        auto tensor = filled_on_own_gpu(world, 10);
        auto const error = thrown<Error>([&] {
          world.all_reduce(tensor);
          ++enqueued_count;
          stream_of(world).synchronize();
        });
        EXPECT_THAT(error.failed_ranks(), ElementsAre(2)) << error.what();
        ++error_count;
      },
      std::chrono::seconds(6));
  return 0;
}

TEST_P(CallGate, ends_the_streams_when_a_rank_is_lost) { run("gate_of_a_lost_rank"); }

/// The last handle goes while the stream waits. The call ends all the same, also when an exception drops the handle.
CROSSRANK_RANK_SCENARIO(gate_of_a_dropped_group) {
  bool const throws = self.arguments.at(1) == "by an exception";
  return run_on_hosts(self, [&](Collective const& world, MemoryHub&) {
    auto tensor = filled_on_own_gpu(world, 10);
    try {
      auto const group = world.split({{0, 1, 2, 3}});
      use_once(group);
      if (world.rank() == 3) std::this_thread::sleep_for(late);
      group.all_reduce(tensor);
      if (throws) throw std::runtime_error("dropped");
    } catch (std::runtime_error const&) {
    }
    EXPECT_EQ(values(tensor), std::vector<float>(10, 10));
  });
}

TEST_P(CallGate, is_passed_when_the_group_is_dropped) {
  for (auto const* const how : {"in order", "by an exception"}) run("gate_of_a_dropped_group", {how});
}

// ---------------------------------------------------------------- calls of other kinds in between

/// Makes one of several kinds of calls that need the host.
void call_with_host(Collective const& world, std::uint64_t kind) {
  auto const next = (world.rank() + 1) % rank_count;
  auto const previous = (world.rank() + rank_count - 1) % rank_count;
  switch (kind) {
    case 0: return world.barrier();
    case 1: {
      auto tensor = Tensor::zeros({4}, Dtype::f32);
      auto request = world.iall_reduce(tensor);
      auto on_gpu = filled_on_own_gpu(world, 2);
      world.all_reduce(on_gpu);
      request.wait();
      EXPECT_EQ(values(on_gpu), std::vector<float>(2, 10));
      return;
    }
    case 2: {
      // A message of a tensor that a held call writes.
      auto tensor = filled_on_own_gpu(world, 3);
      world.all_reduce(tensor);
      auto request = world.isend(tensor, next);
      auto received = Tensor::zeros({3}, Dtype::f32, gpu_of_thread(world));
      world.recv(received, previous);
      request.wait();
      EXPECT_EQ(values(received), std::vector<float>(3, 10));
      return;
    }
    case 3: EXPECT_EQ(world.broadcast_object<std::string>("text", Root{1}), "text"); return;
    case 4: {
      auto on_gpu = filled_on_own_gpu(world, 2);
      std::array<Tensor, 2> both{filled_on_own_gpu(world, 3), on_gpu};
      world.iall_reduce(both).wait();
      EXPECT_EQ(values(on_gpu), std::vector<float>(2, 10));
      return;
    }
    default: {
      auto const group = world.split({{0, 2}, {1, 3}});
      auto tensor = filled_on_own_gpu(world, 2);
      group.all_reduce(tensor);
      world.all_reduce(tensor);
      EXPECT_EQ(values(tensor), std::vector<float>(2, 20));
      return;
    }
  }
}

CROSSRANK_RANK_SCENARIO(gate_between_other_calls) {
  auto const seed = std::stoul(self.arguments.at(1));
  return run_on_hosts(self, [&](Collective const& world, MemoryHub&) {
    std::mt19937 same(seed);                                           // on all ranks
    std::mt19937 own(seed + 1 + static_cast<unsigned>(world.rank()));  // of this rank
    std::optional<Tensor> enqueued;
    for (int i = 0; i < 60; ++i) {
      if (same() % 3 != 0) {
        enqueued = filled_on_own_gpu(world, 4);
        world.all_reduce(*enqueued);
      } else {
        call_with_host(world, same() % 6);
      }
      if (own() % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (enqueued) {
      EXPECT_EQ(values(*enqueued), std::vector<float>(4, 10));
    }
  });
}

TEST_P(CallGate, holds_calls_between_others) {
  auto const seed = std::to_string(std::random_device{}());
  SCOPED_TRACE("seed " + seed);
  run("gate_between_other_calls", {seed});
}

INSTANTIATE_TEST_SUITE_P(Backends, CallGate, testing::Values("messages", "composite"));

}  // namespace
}  // namespace crossrank::test::call_gate_test
