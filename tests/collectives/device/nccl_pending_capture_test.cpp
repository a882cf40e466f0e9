#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/error_of.hpp"

/// Captures of graphs while calls are under way, or on some ranks only.
namespace crossrank::test {
namespace {

using cuda::Graph;

/// A call under way is not swallowed by a graph that is captured from its stream, nor left out of the graph in which it
/// was started.
CROSSRANK_RANK_SCENARIO(nccl_graph_of_pending_calls) {
  auto const world = connect_comparing_gpu_rank();
  for (bool const starts_inside : {false, true}) {
    auto const group = world.split({{0, 1}}, starts_inside ? "inside" : "before");
    auto sum = filled(world, 4);
    group.all_reduce(sum);
    auto const stream = Stream::create(default_device());
    auto pending = filled(world, 4);
    auto captured = filled(world, 4);
    current_stream(default_device()).synchronize();
    Request request;
    auto const start = [&] {
      StreamGuard const guard(stream);
      request = group.iall_reduce(pending);
    };
    if (!starts_inside) start();
    try {
      static_cast<void>(Graph::capture(stream, [&] { starts_inside ? start() : group.all_reduce(captured); }));
    } catch (PeerLostError const&) {  // the pending call has ended the group
    }
    auto const info = error_of<UsageError>([&] { request.wait(); });
    EXPECT_THAT(info.hint, testing::HasSubstr(starts_inside ? "in the body" : "before you capture"));
    EXPECT_FALSE(info.group_usable);
  }
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, of_calls_under_way_is_typed) { expect_job_ok(2, "nccl_graph_of_pending_calls"); }

/// The progress thread visits the group because of a message, and leaves the captured call to its caller.
CROSSRANK_RANK_SCENARIO(nccl_graph_beside_the_progress_thread) {
  auto const world = connect_gpu_rank(ProgressMode::thread);
  auto warm = filled(world, 4);
  world.all_reduce(warm);
  auto const stream = Stream::create(default_device());
  current_stream(default_device()).synchronize();
  auto received = Tensor::zeros({4}, Dtype::f32);
  auto pending = world.irecv(received, 1 - world.rank());
  for (int round = 0; round < 20; ++round) {
    static_cast<void>(Graph::capture(stream, [&] {
      auto request = world.iall_reduce(warm);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      request.wait();
    }));
  }
  world.send(Tensor::zeros({4}, Dtype::f32), 1 - world.rank());
  pending.wait();
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, is_not_caused_by_the_progress_thread) {
  expect_job_ok(2, "nccl_graph_beside_the_progress_thread");
}

/// A message continues after the capture of its stream.
CROSSRANK_RANK_SCENARIO(nccl_graph_beside_a_message) {
  auto const world = connect_gpu_rank();
  auto warm = filled(world, 4);
  world.all_reduce(warm);
  auto const stream = Stream::create(default_device());
  auto received = Tensor::zeros({4}, Dtype::f32, default_device());
  auto captured = filled(world, 4);
  current_stream(default_device()).synchronize();
  Request request;
  {
    StreamGuard const guard(stream);
    request = world.irecv(received, 1 - world.rank());
  }
  auto const sent = Tensor::of(std::vector<float>(4, static_cast<float>(world.rank() + 1)), {4});
  auto const graph = Graph::capture(stream, [&] {
    world.send(sent, 1 - world.rank());
    world.barrier();  // the messages have come
    world.all_reduce(captured);
    EXPECT_FALSE(request.test());
  });
  request.wait();
  EXPECT_EQ(values(received), std::vector<float>(4, static_cast<float>(2 - world.rank())));
  received.copy_from(Tensor::zeros({4}, Dtype::f32));
  graph.replay();
  EXPECT_EQ(values(received), std::vector<float>(4, 0)) << "not a part of the graph";
  return end_gpu_rank();
}

TEST(NcclGraph, leaves_a_message_under_way_out) { expect_job_ok(2, "nccl_graph_beside_a_message"); }

CROSSRANK_RANK_SCENARIO(nccl_graph_on_one_rank) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  auto const stream = Stream::create(default_device());
  current_stream(default_device()).synchronize();
  auto const call = [&] { world.all_reduce(tensor); };
  auto const error = thrown<MismatchError>([&] {
    world.rank() == 0 ? static_cast<void>(Graph::capture(stream, call)) : call();
    current_stream(default_device()).synchronize();
  });
  EXPECT_THAT(error.what(), testing::HasSubstr("in a capture, but rank 1 calls all_reduce"));
  return end_gpu_rank();
}

TEST(NcclGraphRefusal, of_a_call_that_one_rank_captures_is_a_mismatch) { expect_job_ok(2, "nccl_graph_on_one_rank"); }

}  // namespace
}  // namespace crossrank::test
