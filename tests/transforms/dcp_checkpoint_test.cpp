// Checkpoints of models in training as distributed checkpoints.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"
#include "workspace/checkpoint/memory/exchange/export_buffers.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;

/// Odd sizes, a scalar, a frozen and an unused parameter, two dtypes, and a buffer.
TinyOptions const mixed{.bias_dtype = Dtype::f32, .unused = true, .frozen = true, .buffer = true};

class DcpCheckpoint : public testing::Test {
 protected:
  [[nodiscard]] fs::path folder(std::string const& name = "model") const { return folder_.path() / name; }

  /// Trains in a new job, or continues from a checkpoint, up to `last` steps, and saves.
  void train_and_save(int count, int sharding, int last, fs::path const& to, fs::path const& from = {},
                      TinyOptions const& options = {}) const {
    run_jobs(count, sharding, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>(options));
      AdamW optimizer(model, {.lr = 0.02});
      Json state;
      if (!from.empty()) state = load_checkpoint(job.dp_world(), *model, from, {.optimizer = &optimizer});
      train(*model, optimizer, last - static_cast<int>(optimizer.steps()), job.rank(), count);
      save_checkpoint(job.dp_world(), *model, to,
                      {.optimizer = &optimizer,
                       .training_state = {{"epoch", from.empty() ? 1 : state.at("epoch").get<int>() + 1}},
                       .config = {{"model_type", "tiny"}},
                       .format = CheckpointFormat::dcp,
                       .force = true});
      job.close();
    });
  }

  /// Returns model and optimizer of a checkpoint, as one rank loads them.
  [[nodiscard]] static std::map<std::string, std::vector<double>> values_of(fs::path const& path,
                                                                            TinyOptions const& options = {}) {
    auto const model = std::make_shared<TinyMlp>(options);
    AdamW optimizer(model, {});
    load_checkpoint(connect({.backend = "fake"}), *model, path, {.optimizer = &optimizer});
    return values_in(*model, optimizer);
  }
  [[nodiscard]] static std::map<std::string, std::vector<double>> values_in(TrainableModel& model,
                                                                            Optimizer const& optimizer) {
    std::map<std::string, std::vector<double>> values;
    for (auto const& shard : model.sharded_state_dict()) values[shard.name] = reals_of(shard.value);
    for (auto const& [name, tensor] : optimizer.state()) values["state " + name] = reals_of(tensor);
    return values;
  }

 private:
  TemporaryDirectory folder_{};
};

TEST_F(DcpCheckpoint, has_a_file_of_each_rank_with_its_rows) {
  train_and_save(2, 2, 3, folder(), {}, mixed);

  EXPECT_THAT(names_in(folder()),
              testing::ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "config.json", "training_state.json"));
  auto const source = checkpoint::open_dcp(folder(), {.model_key = "."});
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < source->tensors().size(); ++i) numbers[source->tensors()[i].name] = i;
  EXPECT_EQ(source->tensors()[numbers.at("model.layer0.weight")].shape, Shape({5, 3}));
  EXPECT_EQ(source->files_of(numbers.at("model.layer0.weight")).size(), 2U);
  EXPECT_EQ(source->tensors()[numbers.at("optim.state.layer1.weight.exp_avg_sq")].shape, Shape({5, 5}));
  EXPECT_TRUE(numbers.contains("optim.state.scale.step"));
  EXPECT_FALSE(numbers.contains("optim.state.unused.step"));
  EXPECT_EQ(source->attributes().at("optim.param_groups.0.lr"), 0.02);
  EXPECT_EQ(source->attributes().at("optim.param_groups.0.betas"), Json({0.9, 0.999}));
  EXPECT_THAT(source->attributes().at("optim.param_groups.0.params").get<std::vector<std::string>>(),
              testing::Contains("layer2.bias"));
}

/// Replicas share the files out, and the values do not depend on the number of ranks.
TEST_F(DcpCheckpoint, has_the_same_values_from_any_number_of_ranks) {
  train_and_save(2, 2, 3, folder(), {}, mixed);
  auto const expected = values_of(folder(), mixed);
  for (auto const& [count, sharding] : {std::pair(1, 1), {2, 1}, {3, 3}, {4, 2}, {4, 4}, {8, 8}}) {
    auto const path = folder(std::to_string(count) + "_" + std::to_string(sharding));
    train_and_save(count, sharding, 3, path, folder(), mixed);
    EXPECT_EQ(values_of(path, mixed), expected) << count << " ranks, sharded over " << sharding;
    if (count <= 4) {
      EXPECT_TRUE(fs::exists(path / ("__" + std::to_string(count - 1) + "_0.distcp")));
    }
  }
}

/// Equal to rounding: other ranks add in another order.
TEST_F(DcpCheckpoint, resumes_on_two_then_three_then_one_rank) {
  auto const alone = std::make_shared<TinyMlp>();
  AdamW optimizer(alone, {.lr = 0.02});
  for (int part = 0; part < 3; ++part) train(*alone, optimizer, 3, 0, 1);
  train_and_save(2, 2, 3, folder("two"));
  train_and_save(3, 3, 6, folder("three"), folder("two"));
  train_and_save(1, 1, 9, folder("one"), folder("three"));

  auto const expected = values_in(*alone, optimizer);
  auto const got = values_of(folder("one"));
  ASSERT_EQ(got.size(), expected.size());
  for (auto const& [name, values] : expected)
    EXPECT_THAT(got.at(name), testing::Pointwise(testing::DoubleNear(1e-9), values)) << name;
}

TEST_F(DcpCheckpoint, is_verified_and_merged) {
  train_and_save(3, 3, 3, folder());
  run_jobs(2, 1, [&](MeshCollective const& job) {
    std::string defects;
    for (auto const& defect : checkpoint::verify(job.dp_world(), folder()).defects) defects += defect.text + "\n";
    EXPECT_EQ(defects, "");
    checkpoint::consolidate(job.dp_world(), checkpoint::MergePlan::make(job.dp_world(), folder()), folder("merged"));
    job.close();
  });
  auto const merged = load_safetensors(folder("merged") / "model.safetensors");
  auto const values = values_of(folder());
  EXPECT_EQ(reals_of(merged.at("layer1.weight")), values.at("layer1.weight"));
  EXPECT_FALSE(merged.contains("optim.state.layer1.weight.exp_avg"));
}

TEST_F(DcpCheckpoint, has_checksums_of_its_tensors) {
  train_and_save(2, 2, 3, folder());
  auto const path = folder() / "__1_0.distcp";
  auto const text = text_of_file(path);
  auto const data = (text.find("data/0") + 10 + 63) / 64 * 64;  // of the first tensor: the next multiple of 64
  auto const at = data + 8;
  auto broken = text;
  broken[at] = static_cast<char>(broken[at] ^ 1);
  std::ofstream(path, std::ios::binary) << broken;
  EXPECT_THROW((void)values_of(folder()), FormatError);
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_FALSE(values_of(folder()).empty());
}

TEST_F(DcpCheckpoint, replaces_the_other_format_and_more_ranks_completely) {
  train_and_save(3, 3, 1, folder());
  train_and_save(2, 2, 2, folder());
  EXPECT_THAT(names_in(folder()),
              testing::ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "config.json", "training_state.json"));
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>());
    EXPECT_THROW(save_checkpoint(job.dp_world(), *model, folder()), UsageError);
    save_checkpoint(job.dp_world(), *model, folder(), {.force = true});
    job.close();
  });
  EXPECT_THAT(names_in(folder()), testing::ElementsAre("model.safetensors", "training_state.json"));
  train_and_save(2, 2, 2, folder());
  EXPECT_THAT(names_in(folder()),
              testing::ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "config.json", "training_state.json"));
}

TEST_F(DcpCheckpoint, is_refused_by_another_model_or_optimizer) {
  train_and_save(2, 2, 2, folder());
  auto const world = connect({.backend = "fake"});
  auto const other = std::make_shared<TinyMlp>(TinyOptions{.widths = {3, 6, 5, 2}});
  EXPECT_THROW(load_checkpoint(world, *other, folder()), FormatError);
  auto const more = std::make_shared<TinyMlp>(TinyOptions{.unused = true});
  EXPECT_THROW(load_checkpoint(world, *more, folder()), FormatError);
  auto const same = std::make_shared<TinyMlp>();
  SGD sgd(same, {.momentum = 0.9});
  EXPECT_THROW(load_checkpoint(world, *same, folder(), {.optimizer = &sgd}), FormatError);
}

/// A checkpoint that torch saved has no training_state.json: the steps are a tensor.
TEST_F(DcpCheckpoint, is_loaded_without_the_files_of_this_library) {
  train_and_save(2, 2, 4, folder());
  fs::remove(folder() / "training_state.json");
  auto const model = std::make_shared<TinyMlp>();
  AdamW optimizer(model, {});
  EXPECT_EQ(load_checkpoint(connect({.backend = "fake"}), *model, folder(), {.optimizer = &optimizer}), nullptr);
  EXPECT_EQ(optimizer.steps(), 4);
}

/// The gradients were ones in both steps, and the learning rate was 0.
TEST_F(DcpCheckpoint, is_loaded_from_torch_with_its_optimizer) {
  auto const golden = fs::path(CROSSRANK_TEST_DATA) / "dcp" / "dcp_training";
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(TinyOptions{.widths = {3, 2}}));
    AdamW optimizer(model, {});
    load_checkpoint(job.dp_world(), *model, golden, {.optimizer = &optimizer});
    EXPECT_EQ(optimizer.steps(), 2);
    auto const weight = model->sharded_state_dict().front();
    EXPECT_EQ(weight.name, "layer0.weight");
    auto const first = 0.75 * static_cast<double>(weight.first_row);
    EXPECT_EQ(reals_of(weight.value), (std::vector{first, first + 0.25, first + 0.5}));
    EXPECT_THAT(reals_of(optimizer.state().at("layer0.weight.exp_avg")), testing::Each(testing::DoubleEq(0.19)));
    EXPECT_THAT(reals_of(optimizer.state().at("layer0.bias.exp_avg_sq")), testing::Each(testing::DoubleEq(0.001999)));
    job.close();
  });
}

TEST_F(DcpCheckpoint, saves_a_model_without_an_optimizer_and_an_optimizer_without_state) {
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>());
    save_checkpoint(job.dp_world(), *model, folder(), {.format = CheckpointFormat::dcp});
    SGD optimizer(model, {.lr = 0.5});
    train(*model, optimizer, 2, job.rank(), 2);
    save_checkpoint(job.dp_world(), *model, folder("sgd"), {.optimizer = &optimizer, .format = CheckpointFormat::dcp});
    SGD restored(model, {});
    load_checkpoint(job.dp_world(), *model, folder("sgd"), {.optimizer = &restored});
    EXPECT_EQ(restored.steps(), 2);
    load_checkpoint(job.dp_world(), *model, folder());
    job.close();
  });
  EXPECT_EQ(checkpoint::open_dcp(folder("sgd"), {.model_key = "."})->attributes().at("optim.param_groups.0.lr"), 0.5);
}

/// The ranks hold 12 MiB each, and none of them receives any of it.
TEST_F(DcpCheckpoint, sends_no_bytes_of_tensors) {
  TinyOptions const wide{.widths = {1024, 2048, 2048}, .dtype = Dtype::f32};
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(wide));
    job.barrier();
    auto const before = checkpoint::ExportBuffers::process_peak_bytes();
    job.barrier();
    save_checkpoint(job.dp_world(), *model, folder(), {.format = CheckpointFormat::dcp});
    job.barrier();
    // A round without bytes counts as one.
    EXPECT_LE(checkpoint::ExportBuffers::process_peak_bytes(), std::max<std::size_t>(before, 1));
    job.close();
  });
}

}  // namespace
}  // namespace crossrank::test
