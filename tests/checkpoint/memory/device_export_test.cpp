// Weights in the memory of GPUs become one checkpoint. Each rank has one of the two emulated GPUs.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/checkpoint/memory_export.hpp>

#include "tests/checkpoint/memory/sharded_model.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/unfinished_tensor.hpp"
#include "workspace/checkpoint/memory/exchange/export_buffers.hpp"

namespace crossrank::device_export_test {
namespace {

using checkpoint::consolidate;
using checkpoint::iconsolidate;
using test::bytes_of;
using test::difference;
using test::read_checkpoint;
using test::run_thread_ranks;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class DeviceExport : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    // Each of up to four ranks copies in a few threads at a time.
    ::setenv("EMULATED_GPU_KEPT", "pool,stream:16,host:32,event:32", 1);
  }
  void TearDown() override { EXPECT_EQ(test::reports(), 0U) << "the emulated driver has reported a misuse"; }

  [[nodiscard]] std::filesystem::path out() const { return folder_.path() / "out"; }
  [[nodiscard]] test::ModelBytes written() const { return read_checkpoint(out(), false); }

 private:
  test::TemporaryDirectory folder_{};
};

/// Moves every tensor but each `stays`-th to the GPU of a rank.
test::RankPart on_gpus(test::RankPart part, int rank, std::size_t stays = 3) {
  std::size_t number = 0;
  for (auto& [name, tensor] : part.weights) {
    if (++number % stays != 0) tensor = tensor.to(Device::cuda(rank % 2));
  }
  return part;
}

Tensor finished_tensor() { return Tensor::of(test::finished_values(), {test::held_elements}); }

class RanksWithGpus : public DeviceExport, public testing::WithParamInterface<int> {};

TEST_P(RanksWithGpus, write_the_whole_model) {
  for (unsigned round = 0; round < 4; ++round) {
    auto const seed = static_cast<unsigned>(GetParam()) * 1000 + round;
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto const model = test::random_model(seed, GetParam());
    run_thread_ranks(GetParam(), [&](Collective const& world) {
      auto const part = on_gpus(part_of(model, world.rank(), GetParam()), world.rank());
      (void)consolidate(world, part.weights, part.placements, out(),
                        {.max_shard_bytes = round % 2 == 0 ? 300U : 5'000'000U,
                         .force = true,
                         .read_back = checkpoint::ReadBack::all});
    });
    EXPECT_EQ(difference(bytes_of(model), written()), "");
  }
}

TEST_P(RanksWithGpus, give_the_model_to_one_rank_or_in_another_layout) {
  auto const seed = static_cast<unsigned>(GetParam()) * 2000;
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto const model = test::random_model(seed, GetParam());
  auto other = model;
  for (auto& [name, tensor] : other) tensor.placement = {};
  run_thread_ranks(GetParam(), [&](Collective const& world) {
    auto const part = on_gpus(part_of(model, world.rank(), GetParam()), world.rank());
    auto const wanted = part_of(other, world.rank(), GetParam());

    auto const full = checkpoint::get_full_state_dict(world, part.weights, part.placements);
    auto const resharded = checkpoint::reshard(world, part.weights, part.placements, wanted.placements);

    EXPECT_EQ(difference(world.rank() == 0 ? bytes_of(model) : test::ModelBytes(), bytes_of(full)), "");
    EXPECT_EQ(difference(bytes_of(wanted.weights), bytes_of(resharded)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RanksWithGpus, testing::Values(1, 2, 4));

TEST_F(DeviceExport, merges_columns_of_tensor_parallel_ranks) {
  constexpr std::int64_t rows = 3000;
  constexpr std::int64_t columns = 640;
  std::mt19937 random(3);
  auto const name = std::string("model.layers.0.mlp.down_proj.weight");
  test::ShardedModel const model{
      {name, {test::random_tensor(random, {rows, 2 * columns}, Dtype::bf16), {.placements = {checkpoint::Shard{1}}}}}};
  run_thread_ranks(2, [&](Collective const& world) {
    auto const mine = part_of(model, world.rank(), 2).weights.at(name).to(Device::cuda(world.rank()));
    (void)consolidate(world, {{name, mine}}, {.tp_rank = world.rank(), .tp = 2}, out());
  });
  EXPECT_EQ(difference(bytes_of(model), written()), "");
}

TEST_F(DeviceExport, refuses_replicas_that_differ_on_gpus) {
  run_thread_ranks(2, [&](Collective const& world) {
    auto values = test::finished_values();
    values.back() += static_cast<float>(world.rank());
    StateDict const weights{
        {"model.norm.weight", Tensor::of(values, {test::held_elements}).to(Device::cuda(world.rank()))}};
    EXPECT_THROW((void)consolidate(world, weights, {}, out()), FormatError);
  });
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(DeviceExport, of_the_shards_of_each_rank_gives_files_that_merge) {
  constexpr int ranks = 2;
  auto const model = test::random_model(7, ranks);
  run_thread_ranks(ranks, [&](Collective const& world) {
    StateDict whole;
    for (auto const& [name, tensor] : model) whole.insert(name, tensor.whole);
    auto const part = on_gpus({.weights = std::move(whole)}, world.rank());
    (void)checkpoint::save_sharded(world, part.weights, out());
    if (world.rank() == 0) {
      for (auto const& entry : std::filesystem::directory_iterator(out())) {
        if (entry.path().extension() != ".safetensors") continue;
        EXPECT_EQ(difference(bytes_of(model), test::read_model(entry.path())), "") << entry.path();
      }
    }
  });
}

TEST_F(DeviceExport, needs_little_host_memory) {
  constexpr std::int64_t length = 96 << 20;
  run_thread_ranks(1, [&](Collective const& world) {
    auto const weights = StateDict{{"w", Tensor::zeros({length}, Dtype::u8, {.device = Device::cuda(0)})}};
    auto const summary = consolidate(world, weights, {}, out(), {.threads = 2});
    EXPECT_GE(summary.bytes, static_cast<std::uint64_t>(length));
  });
  EXPECT_GT(checkpoint::ExportBuffers::process_peak_bytes(), 1 * mebibyte) << "the bytes come through the buffers";
  EXPECT_LE(checkpoint::ExportBuffers::process_peak_bytes(), 40 * mebibyte);
}

TEST_F(DeviceExport, waits_for_what_the_current_stream_has_yet_to_write) {
  run_thread_ranks(1, [&](Collective const& world) {
    test::with_unfinished_tensor([&](Tensor const& tensor) { (void)consolidate(world, {{"w", tensor}}, {}, out()); });
  });
  EXPECT_EQ(difference(bytes_of(StateDict{{"w", finished_tensor()}}), written()), "");
}

TEST_F(DeviceExport, in_the_background_writes_the_values_of_the_call) {
  run_thread_ranks(2, [&](Collective const& world) {
    auto const mine = Device::cuda(world.rank());
    auto tensor = finished_tensor().to(mine);
    StateDict const weights{{"w", tensor}};
    auto request = iconsolidate(world, weights, {}, out());
    tensor.copy_from(Tensor::zeros(tensor.shape(), Dtype::f32));
    (void)request.wait();
  });
  EXPECT_EQ(difference(bytes_of(StateDict{{"w", finished_tensor()}}), written()), "");
}

TEST_F(DeviceExport, is_refused_on_all_ranks_while_a_stream_is_captured) {
  run_thread_ranks(2, [&](Collective const& world) {
    auto const mine = Device::cuda(world.rank());
    StateDict const weights{{"w", Tensor::of<float>({1, 2}, {2}).to(mine)}};
    auto const stream = Stream::create(mine);
    StreamGuard const guard(stream);
    test::Capture capture(world.rank() == 0 ? stream.native() : nullptr);
    EXPECT_THROW((void)consolidate(world, weights, {}, out()), UsageError);
    EXPECT_TRUE(capture.end()) << "the capture goes on";
    world.barrier();
  });
  EXPECT_FALSE(std::filesystem::exists(out()));
}

/// Counts the copies from GPUs of an export, and fails each of them in turn.
TEST_F(DeviceExport, fails_on_all_ranks_when_a_copy_fails) {
  std::mt19937 random(5);
  test::ShardedModel const model{
      {"replicated", {test::random_tensor(random, {6, 1000}, Dtype::f32), {}}},
      {"rows", {test::random_tensor(random, {64, 1000}, Dtype::f32), {.placements = {checkpoint::Shard{0}}}}}};
  auto const export_once = [&](std::function<void(Collective const&, test::RankPart const&)> const& call) {
    run_thread_ranks(2, [&](Collective const& world) {
      auto const part = on_gpus(part_of(model, world.rank(), 2), world.rank(), 100);
      for (int device = 0; device < 2; ++device) current_stream(Device::cuda(device)).synchronize();
      world.barrier();
      if (world.rank() == 0) test::reset_calls();
      world.barrier();
      call(world, part);
    });
  };
  export_once([&](auto const& world, auto const& part) {
    (void)consolidate(world, part.weights, part.placements, out(), {.force = true});
  });
  auto const copies = test::calls("cuMemcpyDtoHAsync_v2");
  ASSERT_GE(copies, 4U) << "two replicas and two shards";
  auto const before = written();
  for (unsigned long long nth = 1; nth <= copies; ++nth) {
    constexpr int out_of_memory = 2;  // an error that leaves the context usable
    export_once([&](auto const& world, auto const& part) {
      if (world.rank() == 0) test::fail_call("cuMemcpyDtoHAsync_v2", nth, out_of_memory);
      world.barrier();
      EXPECT_THROW((void)consolidate(world, part.weights, part.placements, out(), {.force = true}), Error)
          << "copy " << nth;
    });
    EXPECT_EQ(difference(before, written()), "");
  }
}

}  // namespace
}  // namespace crossrank::device_export_test
