// Models on emulated GPUs: under FullyShard, whose shards, gradients and optimizer state are in pinned host memory, and
// under DDP.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

constexpr Device gpu = Device::cuda(0);
constexpr int offload_ranks = 2;

class CpuOffload : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("CROSSRANK_DEVICE", "staged", 1);  // the same bits as on the CPU
  }
  void TearDown() override { EXPECT_EQ(reports(), 0U); }
};

std::shared_ptr<FullyShardedModel> sharded(MeshCollective const& job, std::shared_ptr<TrainableModel> model,
                                           FullyShardTransformConfig const& config, Device device) {
  return std::dynamic_pointer_cast<FullyShardedModel>(FullyShardTransform(config, job, device).apply(std::move(model)));
}

using Values = std::map<std::string, std::vector<double>>;

/// Returns the GPU of a rank, or the CPU. The emulated host has two GPUs.
Device of_rank(Device device, int rank) { return device == Device::cpu() ? device : Device::cuda(rank % 2); }

struct OffloadJob {
  int ranks = offload_ranks;
  int sharding = offload_ranks;
};

/// Takes a step with the clipped gradients of two passes.
template <class Model>
void accumulate_and_clip(Model& model, AdamW& optimizer, int rank) {
  model.zero_grad();
  for (int part = 0; part < 2; ++part) {
    auto const scope = model.accumulation_context(part == 1);
    run_pass(model, part, rank, rank + 1);
  }
  clip_grad_norm(model, 1.0);
  optimizer.step();
}

/// Trains with accumulation and clipping, and returns the shards of rank 0.
Values trained(FullyShardTransformConfig config, Device device, TinyOptions const& options = {},
               OffloadJob shape = {}) {
  Values values;
  config.offload.cpu_offload = true;
  run_jobs(shape.ranks, shape.sharding, [&](MeshCollective const& job) {
    auto mine = options;
    mine.device = of_rank(device, job.rank());
    auto const model = sharded(job, std::make_shared<TinyMlp>(mine), config, mine.device);
    AdamW optimizer(model, {.lr = 0.02});
    train(*model, optimizer, 1, job.rank(), shape.ranks);
    accumulate_and_clip(*model, optimizer, job.rank());
    if (job.rank() == 0) {
      for (auto const& shard : model->sharded_state_dict()) values[shard.name] = reals_of(shard.value);
    }
    job.close();
  });
  return values;
}

struct OffloadSetting {
  char const* name;
  FullyShardTransformConfig config{};
  TinyOptions model{};
  OffloadJob job{};
};

std::vector<OffloadSetting> offload_settings() {
  TinyOptions const single{
      .widths = {3, 5, 5, 5, 2}, .dtype = Dtype::f32, .bias_dtype = Dtype::f32, .tied = true, .frozen = true};
  MixedPrecisionConfig const bf16{.param_dtype = Dtype::bf16, .reduce_dtype = Dtype::f32, .output_dtype = Dtype::f32};
  return {{"keep", {}, {}},
          {"reshard", {.reshard_after_forward = true}, {}},
          {"smaller", {.reshard_after_forward = 1}, {}},
          {"smaller_of_four", {.reshard_after_forward = 2}, {}, {4, 4}},
          {"three_ranks", {.reshard_after_forward = true}, {.unused = true}, {3, 3}},
          {"two_dtypes", {.reshard_after_forward = true}, {.bias_dtype = Dtype::f32}},
          {"frozen_unit", {.reshard_after_forward = true}, {.frozen_layer = 1}},
          {"hybrid", {.reshard_after_forward = true}, single, {4, 2}},
          {"flattened", {.use_hybrid_sharding = false}, {}, {4, 2}},
          {"every_microbatch", {.sync_grad_accum = true}, {}},
          {"mixed", {.mixed_precision = bf16}, single},
          {"mixed_hybrid", {.reshard_after_forward = true, .mixed_precision = bf16}, single, {4, 2}},
          {"mixed_every_microbatch", {.mixed_precision = bf16, .sync_grad_accum = true}, single},
          {"fp8", {.mixed_precision = {.fp8_enabled = true}}, single},
          {"fp8_e5m2_reshard",
           {.reshard_after_forward = true,
            .mixed_precision = {.param_dtype = Dtype::bf16, .fp8_enabled = true, .fp8_format = Dtype::f8_e5m2}},
           single},
          {"not_pinned", {.reshard_after_forward = true, .offload = {.pin_memory = false}}, {}}};
}

TEST_F(CpuOffload, gives_the_values_of_a_training_on_the_cpu) {
  for (auto const& setting : offload_settings()) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained(setting.config, Device::cpu(), setting.model, setting.job);
    EXPECT_FALSE(expected.empty());
    auto const kernels = calls("cuLaunchKernel");
    EXPECT_EQ(trained(setting.config, gpu, setting.model, setting.job), expected);
    bool const converts_gradients = setting.config.mixed_precision.reduce_dtype.has_value();
    EXPECT_TRUE(!converts_gradients || calls("cuLaunchKernel") > kernels) << "the GPU converts";
  }
}

/// Returns the names of the tensors that are not in pinned host memory.
std::vector<std::string> not_pinned(TrainableModel& model, Optimizer const& optimizer) {
  std::vector<std::string> names;
  auto const check = [&](std::string const& name, Tensor const& tensor) {
    if (tensor.numel() != 0 && (tensor.device() != Device::cpu() || !tensor.is_pinned())) names.push_back(name);
  };
  for (auto const& tensor : model.trained_tensors()) {
    check(tensor.name, tensor.value);
    EXPECT_TRUE(tensor.grad.defined()) << tensor.name;
    check("gradient of " + tensor.name, tensor.grad);
  }
  for (auto const& [name, tensor] : optimizer.state()) {
    if (!name.ends_with(".step")) check("state " + name, tensor);
  }
  return names;
}

TEST_F(CpuOffload, keeps_shards_gradients_and_state_in_pinned_memory_and_units_on_the_gpu_for_use) {
  for (bool const pins : {true, false}) {
    run_jobs(offload_ranks, offload_ranks, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.device = gpu});
      auto const model = sharded(
          job, tiny, {.reshard_after_forward = true, .offload = {.cpu_offload = true, .pin_memory = pins}}, gpu);
      AdamW optimizer(model, {});
      std::size_t passes = 0;
      tiny->on_event = [&](std::string const&) { ++passes; };
      train(*model, optimizer, 2, job.rank(), offload_ranks);
      EXPECT_EQ(passes, 12U);
      // The engine has read all values and written all gradients on the GPU.
      for (auto const& parameter : tiny->parameters()) EXPECT_EQ(parameter->value.device(), gpu) << parameter->name;
      auto const others = not_pinned(*model, optimizer);
      if (pins) {
        EXPECT_THAT(others, testing::IsEmpty());
      } else {
        EXPECT_THAT(others, testing::IsSupersetOf({"layer0.weight", "gradient of layer0.weight",
                                                   "state layer0.weight.exp_avg", "state layer0.weight.exp_avg_sq"}));
      }
      auto const memory = model->memory();
      EXPECT_EQ(memory.gathered, 0U);
      EXPECT_EQ(memory.full_gradients, 0U);
      EXPECT_GT(memory.peak_gathered, 0U);
      EXPECT_THROW((void)reals_of(tiny->parameters()[0]->value), UsageError);
      job.close();
    });
  }
}

TEST_F(CpuOffload, is_required_for_a_model_on_a_gpu) {
  run_jobs(offload_ranks, offload_ranks, [&](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.device = gpu});
    EXPECT_THROW((void)sharded(job, tiny, {}, gpu), UsageError);
    job.close();
  });
}

struct DdpSetting {
  char const* name;
  DDPTransformConfig config{};
  TinyOptions model{};
  bool sends_bf16 = false;
  int ranks = offload_ranks;
};

DdpSetting const ddp_settings[] = {
    {"default", {}, {}},
    {"copied_gradients", {.gradient_as_bucket_view = false}, {.frozen = true, .buffer = true}},
    {"static_graph_and_tied", {.static_graph = true}, {.widths = {3, 5, 5, 5, 2}, .tied = true}},
    {"unused", {.find_unused_parameters = true}, {.unused = true}},
    {"unused_with_copies", {.find_unused_parameters = true, .gradient_as_bucket_view = false}, {.unused = true}},
    {"two_dtypes_on_three_ranks", {}, {.bias_dtype = Dtype::f32}, false, 3},
    {"bf16_hook", {}, {.dtype = Dtype::f32, .bias_dtype = Dtype::f32}, true},
};

/// Trains under DDP with accumulation and clipping, and returns the values of rank 0.
Values trained_by_ddp(DdpSetting const& setting, Device device) {
  Values values;
  run_jobs(setting.ranks, 1, [&](MeshCollective const& job) {
    auto options = setting.model;
    options.device = of_rank(device, job.rank());
    options.seed += job.rank();  // only the values of rank 0 count
    auto const model = std::dynamic_pointer_cast<DDPWrappedModel>(
        DDPTransform(setting.config, job, options.device).apply(std::make_shared<TinyMlp>(options)));
    if (setting.sends_bf16) model->register_comm_hook(bf16_compress_hook());
    AdamW optimizer(model, {.lr = 0.02});
    train(*model, optimizer, 2, job.rank(), setting.ranks);
    accumulate_and_clip(*model, optimizer, job.rank());
    for (auto const& parameter : model->parameters())
      EXPECT_EQ(parameter->value.device(), options.device) << parameter->name;
    if (job.rank() == 0) {
      for (auto const& shard : model->sharded_state_dict()) values[shard.name] = reals_of(shard.value);
    }
    job.close();
  });
  return values;
}

class DDPOnGpu : public CpuOffload {};

TEST_F(DDPOnGpu, gives_the_values_of_a_training_on_the_cpu) {
  for (auto const& setting : ddp_settings) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained_by_ddp(setting, Device::cpu());
    EXPECT_FALSE(expected.empty());
    auto const kernels = calls("cuLaunchKernel");
    EXPECT_EQ(trained_by_ddp(setting, gpu), expected);
    EXPECT_EQ(calls("cuLaunchKernel") > kernels, setting.sends_bf16) << "the GPU converts";
  }
}

}  // namespace
}  // namespace crossrank::test
