// Models on emulated GPUs whose shards, gradients and optimizer state are in pinned host memory.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

constexpr Device gpu = Device::cuda(0);
constexpr int offload_ranks = 2;

/// Uses of the GPU that the emulated driver reports, such as a host access to its memory.
unsigned long long misuses() {
  auto* const library = ::dlopen(CROSSRANK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<unsigned long long (*)()>(::dlsym(library, "emulated_report_count"))();
}

class CpuOffload : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("CROSSRANK_DEVICE", "staged", 1);  // the same bits as on the CPU
  }
  void TearDown() override { EXPECT_EQ(misuses(), 0U); }
};

std::shared_ptr<FullyShardedModel> sharded(MeshCollective const& job, std::shared_ptr<TrainableModel> model,
                                           FullyShardTransformConfig const& config, Device device) {
  return std::dynamic_pointer_cast<FullyShardedModel>(FullyShardTransform(config, job, device).apply(std::move(model)));
}

using Values = std::map<std::string, std::vector<double>>;

/// Trains on 2 ranks and returns the shards of rank 0.
Values trained(FullyShardTransformConfig config, Device device, TinyOptions options = {}) {
  Values values;
  config.offload.cpu_offload = true;
  options.device = device;
  run_jobs(offload_ranks, offload_ranks, [&](MeshCollective const& job) {
    auto const model = sharded(job, std::make_shared<TinyMlp>(options), config, device);
    AdamW optimizer(model, {.lr = 0.02});
    train(*model, optimizer, 3, job.rank(), offload_ranks);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      for (int part = 0; part < 2; ++part) {
        auto const scope = model->accumulation_context(part == 1);
        run_pass(*model, part, job.rank(), job.rank() + 1);
      }
      clip_grad_norm(*model, 1.0);
      optimizer.step();
    }
    if (job.rank() == 0) {
      for (auto const& shard : model->sharded_state_dict()) values[shard.name] = reals_of(shard.value);
    }
    job.close();
  });
  return values;
}

TEST_F(CpuOffload, gives_the_values_of_a_training_on_the_cpu) {
  EXPECT_EQ(trained({.reshard_after_forward = true}, gpu), trained({.reshard_after_forward = true}, Device::cpu()));
  EXPECT_EQ(trained({.reshard_after_forward = 1}, gpu), trained({.reshard_after_forward = 1}, Device::cpu()));
  TinyOptions const single{
      .widths = {3, 5, 5, 5, 2}, .dtype = Dtype::f32, .bias_dtype = Dtype::f32, .tied = true, .frozen = true};
  FullyShardTransformConfig const mixed{
      .mixed_precision = {.param_dtype = Dtype::bf16, .reduce_dtype = Dtype::f32, .output_dtype = Dtype::f32}};
  EXPECT_EQ(trained(mixed, gpu, single), trained(mixed, Device::cpu(), single));
  FullyShardTransformConfig const small{.mixed_precision = {.fp8_enabled = true}};
  EXPECT_EQ(trained(small, gpu, single), trained(small, Device::cpu(), single));
}

/// Returns the names of the tensors that are not in pinned host memory.
std::vector<std::string> not_pinned(TrainableModel& model, Optimizer const& optimizer) {
  std::vector<std::string> names;
  auto const look = [&](std::string const& name, Tensor const& tensor) {
    if (tensor.numel() != 0 && (tensor.device() != Device::cpu() || !tensor.is_pinned())) names.push_back(name);
  };
  for (auto const& tensor : model.trained_tensors()) {
    look(tensor.name, tensor.value);
    EXPECT_TRUE(tensor.grad.defined()) << tensor.name;
    look("gradient of " + tensor.name, tensor.grad);
  }
  for (auto const& [name, tensor] : optimizer.state()) {
    if (!name.ends_with(".step")) look("state " + name, tensor);
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

TEST_F(CpuOffload, is_required_for_a_model_on_a_gpu_and_ddp_refuses_it) {
  run_jobs(offload_ranks, offload_ranks, [&](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.device = gpu});
    EXPECT_THROW((void)sharded(job, tiny, {}, gpu), UsageError);
    job.close();
  });
  run_jobs(offload_ranks, 1, [&](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.device = gpu});
    EXPECT_THROW((void)DDPTransform({}, job, gpu).apply(tiny), UsageError);
    job.close();
  });
}

}  // namespace
}  // namespace crossrank::test
