// Tensors on GPUs in queues. Each rank is a process with its own emulated driver.
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/process_ranks.hpp"

namespace crossrank::test {
namespace {

constexpr std::int64_t long_elements = (9 << 20) / 4 + 1;  // three pieces, the last one short

std::vector<float> ramp(std::int64_t count) {
  std::vector<float> values(as_size(count));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

Tensor ramp_on_gpu(std::int64_t count) { return Tensor::of(ramp(count), {count}).to(default_device()); }

void expect_ramp(std::optional<Tensor> const& got, std::int64_t count, Device device = default_device()) {
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->device(), device);
  EXPECT_EQ(got->shape(), (Shape{count}));
  auto const host = got->to(Device::cpu());
  auto const values = host.as<float>();
  auto const wanted = ramp(count);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), wanted.begin(), wanted.end()));
}

/// Runs a scenario on GPUs that lag behind the host.
JobOutcome run_on_gpus(int ranks, std::string_view scenario, RankOptions options = {}) {
  options.environment["CROSSRANK_CUDA_LIBRARY"] = CROSSRANK_TEST_CUDA;
  options.environment.try_emplace("EMULATED_GPU_DELAY_US", "5000");
  return run_ranks(ranks, scenario, std::move(options));
}

int end_of_rank() {
  EXPECT_EQ(reports(), 0U);
  return testing::Test::HasFailure() ? 1 : 0;
}

TensorDict mixed_dict() {
  TensorDict dict;
  dict.set("long", ramp_on_gpu(long_elements));
  dict.set("small", ramp_on_gpu(3));
  dict.set("cpu", Tensor::of(ramp(600), {600}));
  dict.set("nested", TensorDict{{"list", TensorDict::List{ramp_on_gpu(5), Json{{"k", 1}}}}});
  dict.set("empty", Tensor::empty({0, 3}, Dtype::f32, default_device()));
  return dict;
}

void expect_mixed(std::optional<TensorDict> const& got) {
  ASSERT_TRUE(got.has_value());
  expect_ramp(got->tensor("long"), long_elements);
  expect_ramp(got->tensor("small"), 3);
  expect_ramp(got->tensor("cpu"), 600, Device::cpu());
  expect_ramp(*got->dict("nested").list("list").at(0).tensor(), 5);
  EXPECT_EQ(got->tensor("empty").device(), default_device());
  EXPECT_EQ(got->tensor("empty").shape(), (Shape{0, 3}));
}

/// Passes tensors in chunks of 64 KiB, longer ones, and dictionaries. The writer changes each tensor at once.
void exchange(Collective const& world) {
  auto const queue = MessageQueue::create(world, {.chunk_bytes = 64 << 10, .chunks = 2});
  if (queue.is_writer()) {
    for (auto const count : {std::int64_t{7}, std::int64_t{1000}, long_elements}) {
      auto tensor = ramp_on_gpu(count);
      queue.enqueue(tensor);
      tensor.copy_from(Tensor::zeros({count}, Dtype::f32));
    }
    queue.enqueue(concat(std::vector{ramp_on_gpu(2), ramp_on_gpu(7)}).narrow(0, 2, 7));  // begins inside its memory
    queue.enqueue(Tensor::empty({0}, Dtype::f32, default_device()));
    queue.enqueue(Tensor::of(ramp(4), {4}));
    queue.enqueue(mixed_dict());
  } else {
    expect_ramp(queue.dequeue<Tensor>(), 7);
    auto kept = queue.dequeue<Tensor>();
    expect_ramp(kept, 1000);
    expect_ramp(queue.dequeue<Tensor>(), long_elements);
    expect_ramp(queue.dequeue<Tensor>(), 7);
    expect_ramp(queue.dequeue<Tensor>(), 0);
    expect_ramp(queue.dequeue<Tensor>(), 4, Device::cpu());
    expect_mixed(queue.dequeue<TensorDict>());
    kept.value().copy_from(Tensor::zeros({1000}, Dtype::f32));  // the reader's own memory
  }
  queue.close();
  world.barrier();
}

CROSSRANK_RANK_SCENARIO(queue_carries_gpu_tensors) {
  exchange(connect());
  return end_of_rank();
}

TEST(DeviceQueue, carries_tensors_and_dictionaries_to_the_readers_gpu) {
  auto const job = run_on_gpus(3, "queue_carries_gpu_tensors");
  EXPECT_TRUE(job.ok()) << job.text();
}

/// Three threads as ranks on two hosts, so that one reader has the ring and the other one gets packets.
CROSSRANK_RANK_SCENARIO(queue_carries_gpu_tensors_between_hosts) {
  run_message_ranks(3, [](Collective const& world, MemoryHub&) { exchange(world); }, {.node_memory = true});
  return end_of_rank();
}

TEST(DeviceQueue, carries_tensors_to_readers_on_another_host) {
  auto const job = run_on_gpus(  // three threads that copy
      1, "queue_carries_gpu_tensors_between_hosts",
      {.environment = {{"EMULATED_GPU_KEPT", "pool,stream:3,host:6,event:6"}}});
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(queue_lacks_a_gpu) {
  auto const world = connect();
  auto const queue = MessageQueue::create(world);
  if (queue.is_writer()) {
    queue.enqueue(ramp_on_gpu(long_elements));
    queue.enqueue(mixed_dict());
    queue.enqueue(Tensor::of(ramp(4), {4}));
  } else {
    EXPECT_THROW(static_cast<void>(queue.dequeue<Tensor>()), UnavailableError);
    EXPECT_THROW(static_cast<void>(queue.dequeue<TensorDict>()), UnavailableError);
    expect_ramp(queue.dequeue<Tensor>(), 4, Device::cpu());
  }
  queue.close();
  world.barrier();
  return 0;
}

TEST(DeviceQueue, a_reader_without_a_gpu_or_its_memory_gets_an_error_and_reads_on) {
  auto const without = run_on_gpus(2, "queue_lacks_a_gpu",
                                   {.rank_environment = {{1, {{"CROSSRANK_CUDA_LIBRARY", "/nowhere/libcuda.so.1"}}}}});
  EXPECT_TRUE(without.ok()) << without.text();
  auto const full =
      run_on_gpus(2, "queue_lacks_a_gpu", {.rank_environment = {{1, {{"EMULATED_GPU_MEMORY", "4194304"}}}}});
  EXPECT_TRUE(full.ok()) << full.text();
}

CROSSRANK_RANK_SCENARIO(queue_writer_fails) {
  auto const world = connect();
  auto const queue = MessageQueue::create(world, {.chunk_bytes = 64 << 10, .chunks = 2});
  if (queue.is_writer()) {
    auto const tensor = ramp_on_gpu(long_elements);
    auto const stream = Stream::create(default_device());
    {
      StreamGuard const guard(stream);
      Capture capture(stream.native());
      EXPECT_THROW(queue.enqueue(tensor), UsageError);
      EXPECT_THROW(queue.enqueue(TensorDict{{"w", tensor}}), UsageError);
      EXPECT_TRUE(capture.end()) << "the refused call must leave the capture valid";
    }
    for (int i = 0; i < 40; ++i) {  // each one would keep 9 MiB
      fail_call("cuMemcpyDtoHAsync_v2", 2, 1);
      EXPECT_THROW(queue.enqueue(tensor), BackendError);
    }
    EXPECT_EQ(queue.messages(), 0U);
    queue.enqueue(tensor);
  } else {
    expect_ramp(queue.dequeue<Tensor>(), long_elements);
  }
  queue.close();
  world.barrier();
  return 0;
}

TEST(DeviceQueue, a_tensor_that_cannot_be_read_is_not_sent) {
  auto const job = run_on_gpus(2, "queue_writer_fails", {.environment = {{"CROSSRANK_ARENA_CAP", "67108864"}}});
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(queue_counts_calls) {
  auto const world = connect();
  auto const queue = MessageQueue::create(world);
  auto const tensor = ramp_on_gpu(1000);
  std::optional<Tensor> got;
  auto const exchange_one = [&] {
    if (queue.is_writer()) return queue.enqueue(tensor);
    got = queue.dequeue<Tensor>();
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) {
    exchange_one();
    current_stream(default_device()).synchronize();  // so that its buffer can be used again
  }
  world.barrier();
  reset_calls();
  exchange_one();
  EXPECT_EQ(calls("copy"), 1U);
  EXPECT_EQ(calls(queue.is_writer() ? "cuMemcpyDtoHAsync_v2" : "cuMemcpyHtoDAsync_v2"), 1U);
  for (auto const* call : {"pageable_copy", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuMemAlloc_v2", "host_wait"})
    EXPECT_EQ(calls(call), 0U) << call;
  queue.close();
  world.barrier();
  return 0;
}

TEST(DeviceQueue, a_warm_message_costs_one_copy_on_each_side) {
  auto const job = run_on_gpus(2, "queue_counts_calls");
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank::test
