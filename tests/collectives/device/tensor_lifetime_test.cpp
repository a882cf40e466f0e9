#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>

#include "tests/collectives/device/gpu_tensors.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/support/emulated_driver.hpp"

/// Tensors that are dropped while a stream still has a call on them. Rank 0 holds that stream back. The emulated driver
/// reports the use of freed memory.
namespace crossrank::test {
namespace tensor_lifetime_test {
namespace {

constexpr std::int64_t elements = 50'000;  // long enough for direct messages

/// A tensor whose memory is freed in the order of one stream, and another stream, for calls on it.
struct Streams {
  Stream of_memory = Stream::create(default_device());
  Stream of_calls = Stream::create(default_device());

  /// Returns a tensor with values that have arrived.
  [[nodiscard]] Tensor make(Collective const& world) const {
    StreamGuard const guard(of_memory);
    auto tensor = filled(world, elements);
    of_memory.synchronize();
    return tensor;
  }
  /// Drops the tensor, writes new memory, which may be the same, and lets the calls run.
  void drop(Collective const& world, Tensor& tensor, std::optional<HeldStream>& held) const {
    tensor = {};
    static_cast<void>(make(world));
    static_cast<void>(make(world));
    held.reset();
    of_calls.synchronize();
  }
};

RankOptions on_path(std::string const& path) {
  auto options = gpu_ranks();
  if (path == "staged") options.environment["CROSSRANK_DEVICE"] = "staged";
  return options;
}

std::string path_name(testing::TestParamInfo<char const*> const& one) { return one.param; }

CROSSRANK_RANK_SCENARIO(drops_a_tensor_of_a_collective) {
  auto const world = connect_gpu_rank();
  auto warm_up = filled(world, 1);
  world.all_reduce(warm_up);
  current_stream(default_device()).synchronize();
  Streams const streams;
  auto tensor = streams.make(world);
  std::optional<HeldStream> held;
  {
    StreamGuard const guard(streams.of_calls);
    auto request = world.iall_reduce(tensor);
    streams.of_calls.synchronize();  // what goes through host memory is there
    if (self.rank == 0) held.emplace(streams.of_calls.native());
    request.wait();
  }
  streams.drop(world, tensor, held);
  world.barrier();
  return end_gpu_rank();
}

class TensorOfACollective : public testing::TestWithParam<char const*> {};

TEST_P(TensorOfACollective, lives_until_the_stream_has_passed_the_call) {
  expect_job_ok(2, "drops_a_tensor_of_a_collective", on_path(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Path, TensorOfACollective, testing::Values("nccl", "staged"), path_name);

CROSSRANK_RANK_SCENARIO(drops_a_received_tensor) {
  auto const world = connect_gpu_rank();
  Streams const streams;
  auto tensor = streams.make(world);
  for (int warm_up = 0; warm_up < 2; ++warm_up) {  // the sender's memory is open then
    if (self.rank == 0) world.recv(tensor, 1);
    if (self.rank == 1) world.send(tensor, 0);
    world.barrier();
  }
  if (self.rank == 1) world.send(tensor, 0);
  if (self.rank == 0) {
    std::optional<HeldStream> held;
    {
      StreamGuard const guard(streams.of_calls);
      held.emplace(streams.of_calls.native());
      world.recv(tensor, 1);
    }
    streams.drop(world, tensor, held);
  }
  world.barrier();
  return end_gpu_rank();
}

class TensorOfAReceive : public testing::TestWithParam<char const*> {};

TEST_P(TensorOfAReceive, lives_until_the_stream_has_passed_the_copy) {
  expect_job_ok(2, "drops_a_received_tensor", on_path(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Path, TensorOfAReceive, testing::Values("direct", "staged"), path_name);

/// Rank 1 ends before rank 0 asks for its message.
CROSSRANK_RANK_SCENARIO(leaves_after_a_send) {
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, elements);
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    if (self.rank == 0) world.recv(tensor, 1);
    if (self.rank == 1) world.send(tensor, 0);
    world.barrier();
  }
  if (self.rank == 1) {
    world.send(tensor, 0);
    return end_gpu_rank();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 would have ended
  world.recv(tensor, 1);
  EXPECT_EQ(values(tensor), std::vector<float>(elements, 2));
  return end_gpu_rank();
}

TEST(MemoryOfAMessage, lives_until_the_receiver_has_it) { expect_job_ok(2, "leaves_after_a_send", gpu_ranks()); }

/// Rank 0 gives up, because its stream is stuck. Arguments: the call.
CROSSRANK_RANK_SCENARIO(drops_the_tensor_of_a_failed_call) {
  bool const sends = self.arguments.at(0) == "send";
  auto const world = connect({.backend = "shm", .timeout = std::chrono::seconds(2)});
  Streams const streams;
  auto tensor = streams.make(world);
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    if (!sends) world.all_reduce(tensor);
    if (sends && self.rank == 0) world.send(tensor, 1);
    if (sends && self.rank == 1) world.recv(tensor, 0);
    world.barrier();
  }
  current_stream(default_device()).synchronize();
  if (self.rank == 0) {
    std::optional<HeldStream> held;
    {
      StreamGuard const guard(streams.of_calls);
      held.emplace(streams.of_calls.native());
      EXPECT_THROW(sends ? world.send(tensor, 1) : world.all_reduce(tensor), TimeoutError);
    }
    streams.drop(world, tensor, held);
  } else {
    EXPECT_THROW(sends ? world.recv(tensor, 0) : world.all_reduce(tensor), Error);
  }
  return end_gpu_rank();
}

struct FailedCall {
  char const* path;
  char const* call;
};

class TensorOfAFailedCall : public testing::TestWithParam<FailedCall> {};

TEST_P(TensorOfAFailedCall, lives_until_the_stream_has_passed_it) {
  auto options = on_path(GetParam().path);
  options.arguments = {GetParam().call};
  expect_job_ok(2, "drops_the_tensor_of_a_failed_call", std::move(options));
}

INSTANTIATE_TEST_SUITE_P(Path, TensorOfAFailedCall,
                         testing::Values(FailedCall{"staged", "all_reduce"}, FailedCall{"staged", "send"},
                                         FailedCall{"direct", "send"}),
                         [](auto const& one) { return std::string(one.param.path) + "_" + one.param.call; });

}  // namespace
}  // namespace tensor_lifetime_test
}  // namespace crossrank::test
