// Tensors whose values a GPU has yet to write, in gathers and workspaces. A reader that does not wait for the GPU sees
// zeros.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/cuda.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/unfinished_tensor.hpp"

namespace crossrank {
namespace {

using test::expect_finished;
using test::finished_values;
using test::held_elements;
using test::held_gpu;
using test::release_waited_for;
using test::shareable_tensor;
using test::with_unfinished_tensor;
using test::zeros;

/// The driver adds no delays, so that a copy that waits for nothing runs at once.
test::JobOutcome run_on_prompt_gpus(int ranks, std::string_view scenario, std::vector<std::string> arguments) {
  return test::run_ranks(
      ranks, scenario,
      {.arguments = std::move(arguments),
       .environment = {{"CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA}, {"EMULATED_GPU_DELAY_US", "0"}}});
}

CROSSRANK_RANK_SCENARIO(gathers_unfinished_work) {
  auto const world = connect();
  GatherOptions options;
  if (!self.arguments.empty()) options.workspace_path = self.arguments.front();
  if (self.rank == 1) {
    with_unfinished_tensor([&](Tensor const& mine) { get_tensors_parallel(mine, world, options).close(); });
    return 0;
  }
  auto tensors = get_tensors_parallel(Tensor::of<float>({1}, {1}), world, options);
  expect_finished(tensors[1]);  // before rank 1 continues
  tensors.close();
  return 0;
}

TEST(DeviceOrder, of_a_gather_through_memory_comes_after_the_work_of_the_stream) {
  auto const job = run_on_prompt_gpus(2, "gathers_unfinished_work", {});
  EXPECT_TRUE(job.ok()) << job.text();
}

GatherOptions views_in_place() {
  GatherOptions options;
  options.in_place = true;
  return options;
}

CROSSRANK_RANK_SCENARIO(gives_unfinished_work_in_place) {
  auto const world = connect();
  if (self.rank == 1) {
    with_unfinished_tensor([&](Tensor const& mine) { get_tensors_parallel(mine, world, views_in_place()).close(); });
    return 0;
  }
  auto tensors = get_tensors_parallel(Tensor::of<float>({1}, {1}), world, views_in_place());
  EXPECT_EQ(tensors[1].device(), held_gpu) << "a view";
  expect_finished(tensors[1].to(Device::cpu()));
  tensors.close();
  return 0;
}

TEST(DeviceOrder, of_a_view_in_place_comes_after_the_work_of_the_stream) {
  auto const job = run_on_prompt_gpus(2, "gives_unfinished_work_in_place", {});
  EXPECT_TRUE(job.ok()) << job.text();
}

/// The owner writes its memory again when the range has closed. The receiver's GPU reads it late.
CROSSRANK_RANK_SCENARIO(reads_a_view_late) {
  auto const world = connect();
  if (self.rank == 1) {
    auto mine = shareable_tensor(finished_values());
    get_tensors_parallel(mine, world, views_in_place()).close();
    mine.copy_from(Tensor::of(zeros(), {held_elements}));
    current_stream(held_gpu).synchronize();
    world.barrier();
    return 0;
  }
  auto copy = Tensor::zeros({held_elements}, Dtype::f32, held_gpu);
  current_stream(held_gpu).synchronize();
  auto const stream = Stream::create(held_gpu);
  StreamGuard const guard(stream);
  auto tensors = get_tensors_parallel(Tensor::of<float>({1}, {1}), world, views_in_place());
  test::HeldStream held(stream.native());
  copy.copy_from(tensors[1]);
  {
    auto const releaser = release_waited_for(held);
    tensors.close();
    world.barrier();
  }
  expect_finished(copy.to(Device::cpu()));
  return 0;
}

TEST(DeviceOrder, of_a_range_in_place_ends_after_the_reads_of_its_views) {
  auto const job = run_on_prompt_gpus(2, "reads_a_view_late", {});
  EXPECT_TRUE(job.ok()) << job.text();
}

/// The files are written by another thread, on a stream of its own.
TEST(DeviceOrder, of_a_gather_through_files_comes_after_the_work_of_the_stream) {
  test::TemporaryDirectory const directory;
  auto const job = run_on_prompt_gpus(2, "gathers_unfinished_work", {directory.path().string()});
  EXPECT_TRUE(job.ok()) << job.text();
}

/// Two threads as ranks on two hosts: rank 1 sends a packed contribution.
CROSSRANK_RANK_SCENARIO(sends_unfinished_work) {
  test::run_message_ranks(2, [](Collective const& world, test::MemoryHub&) {
    if (world.rank() == 1)
      return with_unfinished_tensor([&](Tensor const& mine) { get_tensors_parallel(mine, world).close(); });
    auto tensors = get_tensors_parallel(Tensor::of<float>({1}, {1}), world);
    expect_finished(tensors[1]);
    tensors.close();
  });
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(DeviceOrder, of_a_gather_between_hosts_comes_after_the_work_of_the_stream) {
  auto const job = run_on_prompt_gpus(1, "sends_unfinished_work", {});
  EXPECT_TRUE(job.ok()) << job.text();
}

CROSSRANK_RANK_SCENARIO(writes_unfinished_work) {
  auto const format = self.arguments.at(1) == "torch" ? StateFormat::torch : StateFormat::safetensors;
  NFSWorkspace files(self.arguments.front(), {.rank = 0, .format = format});
  with_unfinished_tensor([&](Tensor const& mine) { files.write_configs_and_weights(1, {{"w", mine}}); });
  expect_finished(files.read_configs_and_weights_from_rank(0).value().weights.at("w"));
  files.clean();
  return 0;
}

TEST(DeviceOrder, of_a_state_in_a_file_comes_after_the_work_of_the_stream) {
  for (auto const* format : {"safetensors", "torch"}) {
    test::TemporaryDirectory const directory;
    auto const job = run_on_prompt_gpus(1, "writes_unfinished_work", {directory.path().string(), format});
    EXPECT_TRUE(job.ok()) << format << job.text();
  }
}

CROSSRANK_RANK_SCENARIO(publishes_unfinished_work) {
  auto const world = connect();
  SharedMemoryWorkspace memory(world);
  auto const check = [&] {
    world.barrier();
    expect_finished(memory.read_configs_and_weights_from_rank(1).value().weights.at("w"));
    world.barrier();
  };
  if (self.rank != 1) {
    check();
    return 0;
  }
  with_unfinished_tensor([&](Tensor const& mine) {
    memory.write_configs_and_weights(1, {{"w", mine}});
    check();
  });
  return 0;
}

TEST(DeviceOrder, of_a_state_in_shared_memory_comes_after_the_work_of_the_stream) {
  auto const job = run_on_prompt_gpus(2, "publishes_unfinished_work", {});
  EXPECT_TRUE(job.ok()) << job.text();
}

}  // namespace
}  // namespace crossrank
