#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"

/// Messages between GPUs in groups that span two hosts: between ranks of one host they stay on the GPUs. The ranks are
/// threads of one process; ranks 0 and 2 are on one host, rank 1 is on the other. Calls are counted for all of them.
namespace crossrank::test {
namespace composite_messages_test {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::int64_t elements = 50'000;  // 200,000 bytes

Tensor on_gpu(Collective const& world, float value, std::int64_t count = elements) {
  return Tensor::of(std::vector<float>(as_size(count), value), {count}).to(Device::cuda(world.rank()));
}

Tensor receive(Collective const& world, int src, std::int64_t count = elements) {
  auto tensor = on_gpu(world, -1, count);
  world.recv(tensor, src);
  return tensor;
}

/// The first message of a pair announces the memory of the sender, and goes through host memory.
void warm_up(Collective const& world, int src, int dst) {
  if (world.rank() == src) world.send(on_gpu(world, 7), dst);
  if (world.rank() == dst) {
    EXPECT_THAT(values(receive(world, src)), Each(7));
  }
  world.barrier();
}

int run_on_two_hosts(MessageBody const& body) {
  run_message_ranks(3, body, {.node_memory = true});
  return end_gpu_rank();
}

unsigned long long copies_through_the_host() {
  return emulated_count("cuMemcpyDtoHAsync_v2") + emulated_count("cuMemcpyHtoDAsync_v2");
}

/// Counts while all ranks are in `body`.
void count_calls(Collective const& world, std::function<void()> const& body) {
  current_stream(Device::cuda(world.rank())).synchronize();
  world.barrier();
  if (world.rank() == 0) reset_emulated_counts();
  world.barrier();
  body();
  world.barrier();
}

// ---------------------------------------------------------------- paths

CROSSRANK_RANK_SCENARIO(composite_messages_on_a_host) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    constexpr int rounds = 40;
    warm_up(world, 0, 2);
    warm_up(world, 2, 0);
    std::vector<Tensor> received;
    for (int i = 0; i < rounds; ++i) received.push_back(on_gpu(world, -1));
    auto const sent = on_gpu(world, 3);
    count_calls(world, [&] {
      if (world.rank() == 1) return;
      for (auto& tensor : received) {
        if (world.rank() == 0) world.send(sent, 2);
        world.recv(tensor, 2 - world.rank());
        if (world.rank() == 2) world.send(sent, 0);
      }
    });
    EXPECT_EQ(copies_through_the_host(), 0U);
    EXPECT_EQ(emulated_count("cuMemcpyDtoDAsync_v2") + emulated_count("cuMemcpyPeerAsync"), 4U * rounds);
    for (auto const* const call : {"cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemHostAlloc"})
      EXPECT_EQ(emulated_count(call), 0U) << call;
    world.barrier();
    if (world.rank() == 1) return;
    for (auto const& tensor : received) EXPECT_THAT(values(tensor), Each(3));
  });
}

TEST(CompositeMessages, stay_on_the_gpus_of_a_host_and_allocate_nothing) {
  expect_job_ok(1, "composite_messages_on_a_host", one_process());
}

CROSSRANK_RANK_SCENARIO(composite_messages_between_hosts) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    warm_up(world, 0, 1);
    auto const sent = on_gpu(world, 3);
    auto got = on_gpu(world, -1);
    count_calls(world, [&] {
      if (world.rank() == 0) world.send(sent, 1);
      if (world.rank() == 1) world.recv(got, 0);
    });
    EXPECT_EQ(copies_through_the_host(), 2U);
    world.barrier();
    if (world.rank() == 1) {
      EXPECT_THAT(values(got), Each(3));
    }
  });
}

TEST(CompositeMessages, go_through_host_memory_between_hosts) {
  expect_job_ok(1, "composite_messages_between_hosts", one_process());
}

// ---------------------------------------------------------------- rules of messages

CROSSRANK_RANK_SCENARIO(composite_messages_changed_at_once) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    warm_up(world, 0, 2);
    for (int i = 0; i < 300; ++i) {
      auto const value = static_cast<float>(i);
      std::int64_t const count = i % 7 == 0 ? 10 : 9'000 + i;  // of both paths, and of outboxes that grow
      if (world.rank() == 0) {
        auto tensor = on_gpu(world, value, count);
        world.send(tensor, 2);
        tensor.copy_from(on_gpu(world, -2, count));  // and it is freed
      } else if (world.rank() == 2) {
        EXPECT_THAT(values(receive(world, 0, count)), Each(value));
      }
    }
    world.barrier();
  });
}

TEST(CompositeMessages, leave_the_tensor_to_the_sender) {
  expect_job_ok(1, "composite_messages_changed_at_once", one_process());
}

CROSSRANK_RANK_SCENARIO(composite_messages_mixed) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    warm_up(world, 0, 2);
    for (int round = 0; round < 12; ++round) {
      auto const value = static_cast<float>(10 * round);
      // Ranks of both hosts send to a receive from any rank.
      if (world.rank() != 2) world.send(on_gpu(world, value + static_cast<float>(world.rank())), 2);
      for (int i = 0; i < 2 && world.rank() == 2; ++i) {
        auto got = on_gpu(world, -1);
        auto const src = world.recv_any(got);
        EXPECT_THAT(values(got), Each(value + static_cast<float>(src)));
      }
      world.barrier();
      // Nobody receives yet, and there are more messages than slots. Then a CPU receives, and GPUs.
      std::vector<Request> sending;
      for (int i = 0; i < 12 && world.rank() == 0; ++i)
        sending.push_back(world.isend(on_gpu(world, value + static_cast<float>(i)), 2));
      world.barrier();
      for (int i = 0; i < 12 && world.rank() == 2; ++i) {
        auto got = i % 3 == 0 ? Tensor::zeros({elements}, Dtype::f32) : on_gpu(world, -1);
        world.recv(got, 0);
        EXPECT_THAT(values(got), Each(value + static_cast<float>(i)));
      }
      for (auto& request : sending) request.wait();
      world.barrier();
    }
  });
}

TEST(CompositeMessages, keep_their_order_from_any_rank_and_to_cpus) {
  expect_job_ok(1, "composite_messages_mixed", one_process());
}

/// The second message is longer than those before: it announces new memory of the sender, while the first one is in the
/// old memory. The receiver waits for the last one first.
CROSSRANK_RANK_SCENARIO(composite_messages_waited_for_backwards) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    for (int round = 0; round < 20; ++round) {
      auto const count = [&](int i) { return std::int64_t{10'000} * (i == 1 ? 4 : 1) * (round + 1); };
      std::vector<Tensor> got;
      std::vector<Request> receiving;
      for (int i = 0; i < 4 && world.rank() == 2; ++i) got.push_back(on_gpu(world, -1, count(i)));
      for (auto& tensor : got) receiving.push_back(world.irecv(tensor, 0));
      for (int i = 0; i < 4 && world.rank() == 0; ++i) world.send(on_gpu(world, static_cast<float>(i), count(i)), 2);
      for (std::size_t i = got.size(); i-- > 0;) {
        receiving[i].wait();
        EXPECT_THAT(values(got[i]), Each(static_cast<float>(i)));
      }
      world.barrier();
    }
  });
}

TEST(CompositeMessages, may_be_waited_for_in_any_order) {
  expect_job_ok(1, "composite_messages_waited_for_backwards", one_process());
}

CROSSRANK_RANK_SCENARIO(composite_messages_mismatch) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    warm_up(world, 0, 2);
    for (int i = 0; i < 30 && world.rank() != 1; ++i) {  // more than there are slots
      if (world.rank() == 0) {
        world.send(on_gpu(world, 1), 2);
        world.send(on_gpu(world, 2), 2);
        continue;
      }
      auto tensor = on_gpu(world, -1, elements + 1);
      EXPECT_THROW(world.recv(tensor, 0), MismatchError);
      EXPECT_THAT(values(receive(world, 0)), Each(2));
    }
    auto const sent = on_gpu(world, 4);
    auto got = on_gpu(world, -1);
    count_calls(world, [&] {
      if (world.rank() == 0) world.send(sent, 2);
      if (world.rank() == 2) world.recv(got, 0);
    });
    EXPECT_EQ(copies_through_the_host(), 0U) << "the slots of dropped messages are free";
    world.barrier();
  });
}

TEST(CompositeMessages, of_another_size_are_dropped) { expect_job_ok(1, "composite_messages_mismatch", one_process()); }

// ---------------------------------------------------------------- ends

CROSSRANK_RANK_SCENARIO(composite_messages_not_received) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    for (int i = 0; i < 6; ++i) {
      auto group = world.split({{0, 1, 2}});
      warm_up(group, 0, 2);
      if (group.rank() == 0) {
        for (int message = 0; message < 8; ++message) group.send(on_gpu(group, 1), 2);
      }
      group.close();
      world.barrier();
    }
    EXPECT_LE(emulated_count("cuMemAlloc_v2") - emulated_count("cuMemFree_v2"), 2U) << "outboxes of groups that ended";
    world.barrier();
  });
}

TEST(CompositeMessages, that_nobody_receives_end_with_their_group) {
  expect_job_ok(1, "composite_messages_not_received", one_process());
}

/// Rank 0 drops its group before rank 2 asks for its message.
CROSSRANK_RANK_SCENARIO(composite_messages_before_the_sender_leaves) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    auto const group = world.split({{0, 1, 2}});
    warm_up(group, 0, 2);
    if (world.rank() == 0) return group.send(on_gpu(world, 5), 2);
    if (world.rank() == 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 would have gone
    EXPECT_THAT(values(receive(group, 0)), Each(5));
  });
}

TEST(CompositeMessages, arrive_although_their_sender_leaves) {
  expect_job_ok(1, "composite_messages_before_the_sender_leaves", one_process());
}

/// The sender goes by an exception when its message is under way.
CROSSRANK_RANK_SCENARIO(composite_messages_of_a_lost_sender) {
  return run_on_two_hosts([](Collective const& world, MemoryHub&) {
    struct Leaves {};
    try {
      auto const group = world.split({{0, 1, 2}});
      warm_up(group, 0, 2);
      if (world.rank() == 0) {
        group.send(on_gpu(world, 1), 2);
        throw Leaves();
      }
      EXPECT_THROW(world.barrier(), PeerLostError);
      if (world.rank() == 1) return;
      auto const info = error_of<PeerLostError>([&] { static_cast<void>(receive(group, 0)); });
      EXPECT_THAT(info.failed_ranks, ElementsAre(0));
    } catch (Leaves const&) {
    }
  });
}

TEST(CompositeMessages, of_a_sender_that_has_gone_are_lost) {
  expect_job_ok(1, "composite_messages_of_a_lost_sender", one_process());
}

}  // namespace
}  // namespace composite_messages_test
}  // namespace crossrank::test
