// Checkpoints of models that train on emulated GPUs.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/transforms/checkpoint.hpp>

#include "tests/support/emulated_driver.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

using Values = std::map<std::string, std::vector<double>>;

constexpr int checkpoint_ranks = 2;

TinyOptions tiny_model(Device device, double seed) {
  return {.bias_dtype = Dtype::f32, .buffer = true, .seed = seed, .device = device};
}

class DeviceCheckpoint : public testing::TestWithParam<CheckpointFormat> {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1);
    ::setenv("CROSSRANK_DEVICE", "staged", 1);  // the same bits as on the CPU
    ::setenv("EMULATED_GPU_KEPT", "pool,stream:8,host:16,event:16", 1);
  }
  void TearDown() override { EXPECT_EQ(reports(), 0U) << "the emulated driver has reported a misuse"; }

  [[nodiscard]] std::filesystem::path folder() const { return folder_.path() / "model"; }

  /// Trains on GPUs or on the CPU for one step after `prepare`, and returns the values of rank 0.
  template <class Prepare>
  static Values trained(bool on_gpu, double seed, Prepare const& prepare) {
    Values values;
    run_jobs(checkpoint_ranks, 1, [&](MeshCollective const& job) {
      auto const device = on_gpu ? Device::cuda(job.rank()) : Device::cpu();
      auto const model = DDPTransform({}, job, device).apply(std::make_shared<TinyMlp>(tiny_model(device, seed)));
      AdamW optimizer(model, {.lr = 0.02});
      prepare(job, *model, optimizer);
      train(*model, optimizer, 1, job.rank(), checkpoint_ranks);
      if (job.rank() == 0) {
        for (auto const& parameter : model->parameters()) values[parameter->name] = reals_of(parameter->value);
      }
      job.close();
    });
    return values;
  }

 private:
  TemporaryDirectory folder_{};
};

TEST_P(DeviceCheckpoint, continues_a_training_on_gpus_or_on_the_cpu) {
  auto const expected = trained(true, 1, [&](auto const& job, auto& model, auto& optimizer) {
    train(model, optimizer, 2, job.rank(), checkpoint_ranks);
    save_checkpoint(job.dp_world(), model, folder(), {.optimizer = &optimizer, .format = GetParam()});
  });
  ASSERT_FALSE(expected.empty());
  for (bool const on_gpu : {true, false}) {
    auto const continued = trained(on_gpu, 2, [&](auto const& job, auto& model, auto& optimizer) {
      load_checkpoint(job.dp_world(), model, folder(), {.optimizer = &optimizer});
    });
    EXPECT_EQ(continued, expected) << (on_gpu ? "on GPUs" : "on the CPU");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceCheckpoint,
                         testing::Values(CheckpointFormat::hugging_face, CheckpointFormat::dcp));

}  // namespace
}  // namespace crossrank::test
