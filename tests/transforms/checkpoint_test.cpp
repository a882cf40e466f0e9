#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// The ranks of a job and how many of them shard; 1: DDP.
struct JobShape {
  int ranks = 1;
  int sharding = 1;
};

constexpr JobShape shapes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4}};

/// Odd sizes, a scalar, a frozen and an unused parameter, two dtypes, and a buffer.
TinyOptions const sample{.bias_dtype = Dtype::f32, .unused = true, .frozen = true, .buffer = true};

class Checkpoint : public testing::Test {
 protected:
  [[nodiscard]] fs::path folder(std::string const& name = "model") const { return folder_.path() / name; }

  /// Trains `steps` steps on 2 ranks and saves.
  void save(int steps, std::uint64_t max_shard_bytes = 5'000'000'000) const {
    run_jobs(2, 2, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
      AdamW optimizer(model, {.lr = 0.02});
      train(*model, optimizer, steps, job.rank(), 2);
      save_checkpoint(job.dp_world(), *model, folder(),
                      {.optimizer = &optimizer,
                       .training_state = {{"epoch", 3}},
                       .config = {{"model_type", "tiny"}},
                       .max_shard_bytes = max_shard_bytes});
      job.close();
    });
  }

  /// Returns all files of a checkpoint.
  [[nodiscard]] static std::map<std::string, std::string> files_in(fs::path const& path) {
    std::map<std::string, std::string> files;
    for (auto const& name : names_in(path)) files[name] = text_of_file(path / name);
    return files;
  }

 private:
  TemporaryDirectory folder_{};
};

TEST_F(Checkpoint, has_the_same_bytes_from_any_number_of_ranks) {
  save(5);
  auto const expected = files_in(folder());
  EXPECT_THAT(expected, testing::UnorderedElementsAre(testing::Key("config.json"), testing::Key("model.safetensors"),
                                                      testing::Key("optimizer.safetensors"),
                                                      testing::Key("training_state.json")));
  for (auto const& [ranks, sharding] : shapes) {
    auto const again = folder(std::to_string(ranks) + "_" + std::to_string(sharding));
    run_jobs(ranks, sharding, [&](MeshCollective const& job) {
      auto other = sample;
      other.seed += 10 + job.rank();
      auto const model = distributed(job, std::make_shared<TinyMlp>(other));
      AdamW optimizer(model, {.lr = 0.02});
      auto const state = load_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &optimizer});
      EXPECT_EQ(state.at("epoch"), 3);
      EXPECT_EQ(optimizer.steps(), 5);
      save_checkpoint(job.dp_world(), *model, again,
                      {.optimizer = &optimizer, .training_state = state, .config = {{"model_type", "tiny"}}});
      job.close();
    });
    EXPECT_EQ(files_in(again), expected) << ranks << " ranks, sharded over " << sharding;
  }
}

/// Statistics of the ranks' own batches differ between ranks.
TEST_F(Checkpoint, has_the_buffers_of_rank_0) {
  for (int const sharding : {1, 2}) {
    auto const path = folder(std::to_string(sharding));
    run_jobs(2, sharding, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>(sample);
      auto const model = distributed(job, tiny);
      auto& buffer = tiny->buffers().front()->value;
      for (auto& value : buffer.as_mutable<float>()) value = static_cast<float>(5 + job.rank());
      save_checkpoint(job.dp_world(), *model, path, {.config = {{"model_type", "tiny"}}});
      EXPECT_THAT(reals_of(buffer), testing::Each(5.0 + job.rank())) << "saving changes no buffer";
      load_checkpoint(job.dp_world(), *model, path);
      EXPECT_THAT(reals_of(buffer), testing::Each(5.0));
      job.close();
    });
  }
}

std::map<std::string, std::vector<double>> shards_of(TrainableModel& model) {
  std::map<std::string, std::vector<double>> shards;
  for (auto const& shard : model.sharded_state_dict()) shards[shard.name] = reals_of(shard.value);
  return shards;
}

/// The ranks add in the same order, so the results are equal to the last bit.
TEST_F(Checkpoint, resumes_as_if_it_had_never_stopped) {
  for (auto const& [ranks, sharding] : shapes) {
    auto const path = folder(std::to_string(ranks) + "_" + std::to_string(sharding));
    run_jobs(ranks, sharding, [&, ranks = ranks](MeshCollective const& job) {
      TinyOptions const options{.frozen = true};
      auto const model = distributed(job, std::make_shared<TinyMlp>(options));
      AdamW optimizer(model, {.lr = 0.02});
      train(*model, optimizer, 6, job.rank(), ranks);
      save_checkpoint(job.dp_world(), *model, path, {.optimizer = &optimizer});
      train(*model, optimizer, 6, job.rank(), ranks);

      auto const resumed = distributed(job, std::make_shared<TinyMlp>(options));
      AdamW restored(resumed, {.lr = 0.02});
      load_checkpoint(job.dp_world(), *resumed, path, {.optimizer = &restored});
      train(*resumed, restored, 6, job.rank(), ranks);

      EXPECT_EQ(shards_of(*resumed), shards_of(*model));
      job.close();
    });
  }
}

/// Returns the values of a whole parameter that belong to a shard.
std::vector<double> rows_of(Tensor const& whole, TensorShard const& shard) {
  auto const values = reals_of(whole);
  auto const row = shard.shape.empty() ? 1 : static_cast<std::int64_t>(values.size()) / shard.shape[0];
  auto const begin = values.begin() + shard.first_row * row;
  return shard.value.numel() == 0 ? std::vector<double>() : std::vector<double>(begin, begin + shard.value.numel());
}

/// Equal to rounding: other ranks add in another order.
TEST_F(Checkpoint, resumes_on_another_number_of_ranks) {
  auto const alone = std::make_shared<TinyMlp>();
  AdamW optimizer(alone, {.lr = 0.02});
  train(*alone, optimizer, 6, 0, 1);
  train(*alone, optimizer, 6, 0, 1);
  run_jobs(3, 3, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>());
    AdamW mine(model, {.lr = 0.02});
    train(*model, mine, 6, job.rank(), 3);
    save_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &mine});
    job.close();
  });
  for (auto const& [ranks, sharding] : shapes) {
    run_jobs(ranks, sharding, [&, ranks = ranks](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>());
      AdamW mine(model, {.lr = 0.02});
      load_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &mine});
      train(*model, mine, 6, job.rank(), ranks);
      auto const shards = model->sharded_state_dict();
      for (std::size_t i = 0; i < shards.size(); ++i) {
        auto const expected = rows_of(alone->sharded_state_dict()[i].value, shards[i]);
        EXPECT_THAT(reals_of(shards[i].value), testing::Pointwise(testing::DoubleNear(1e-9), expected));
      }
      job.close();
    });
  }
}

/// The momentum is 0 when the checkpoint is saved, and when the optimizer that loads it is made.
TEST_F(Checkpoint, keeps_the_state_of_a_momentum_that_a_schedule_changes) {
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
    SGD optimizer(model, {.lr = 0.1, .momentum = 0.9});
    train(*model, optimizer, 2, job.rank(), 2);
    optimizer.options().momentum = 0;
    save_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &optimizer});
    auto const again = distributed(job, std::make_shared<TinyMlp>(sample));
    SGD resumed(again, {.lr = 0.1});
    load_checkpoint(job.dp_world(), *again, folder(), {.optimizer = &resumed});
    for (auto* const each : {&optimizer, &resumed}) {
      each->options().momentum = 0.9;
      train(each->model(), *each, 1, job.rank(), 2);
    }
    EXPECT_EQ(shards_of(*again), shards_of(*model));
    job.close();
  });
}

TEST_F(Checkpoint, spreads_large_models_over_several_files) {
  save(2, 100);
  auto const names = names_in(folder());
  EXPECT_THAT(names, testing::Contains("model.safetensors.index.json"));
  EXPECT_THAT(names, testing::Contains(testing::StartsWith("optimizer-00002-of-")));
  run_jobs(3, 3, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
    AdamW optimizer(model, {});
    load_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &optimizer});
    EXPECT_EQ(optimizer.steps(), 2);
    std::string defects;
    for (auto const& defect : checkpoint::verify(job.dp_world(), folder()).defects) defects += defect.text + "\n";
    EXPECT_EQ(defects, "");
    // The rest of an old checkpoint serves as the description of the next one.
    save_checkpoint(job.dp_world(), *model, folder("next"), {.directory = folder()});
    job.close();
  });
  EXPECT_THAT(names_in(folder("next")),
              testing::ElementsAre("config.json", "model.safetensors", "training_state.json"));
}

TEST_F(Checkpoint, loads_a_model_in_another_dtype_without_an_optimizer) {
  fs::create_directories(folder());
  TinyMlp const saved({.dtype = Dtype::bf16, .bias_dtype = Dtype::bf16});
  StateDict weights;
  for (auto const& parameter : saved.parameters()) weights.insert(parameter->name, parameter->value);
  save_safetensors(folder() / "model.safetensors", weights);
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(TinyOptions{.seed = 9}));
    EXPECT_EQ(load_checkpoint(job.dp_world(), *model, folder()), nullptr);
    auto const shards = model->sharded_state_dict();
    for (auto const& shard : shards) EXPECT_EQ(reals_of(shard.value), rows_of(weights.at(shard.name), shard));
    job.close();
  });
}

/// What all ranks say when they load the sample into another model.
void expect_refused(fs::path const& path, TinyOptions const& options, std::string const& text, bool with_sgd = false) {
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(options));
    AdamW adam(model, {});
    SGD sgd(model, {.momentum = 0.9});
    auto const before = shards_of(*model);
    try {
      load_checkpoint(job.dp_world(), *model, path,
                      {.optimizer = with_sgd ? static_cast<Optimizer*>(&sgd) : static_cast<Optimizer*>(&adam)});
      ADD_FAILURE() << "loaded on rank " << job.rank();
    } catch (FormatError const& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
    EXPECT_EQ(shards_of(*model), before);
    job.close();
  });
}

TEST_F(Checkpoint, is_refused_by_another_model) {
  save(2);
  auto other = sample;
  other.widths = {3, 6, 5, 2};
  expect_refused(folder(), other, "layer0.weight");
  other = sample;
  other.widths = {3, 5, 5, 5, 2};
  expect_refused(folder(), other, "layer2.weight");
  other = sample;
  other.unused = false;
  expect_refused(folder(), other, "unused");
  expect_refused(folder(), sample, "AdamW", true);
  fs::remove(folder() / "training_state.json");
  expect_refused(folder(), sample, "no state of an optimizer");
}

TEST_F(Checkpoint, keeps_infinity_in_the_training_state) {
  run_jobs(2, 1, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
    auto const best = std::numeric_limits<double>::infinity();
    save_checkpoint(job.dp_world(), *model, folder(), {.training_state = {{"best", best}}});
    EXPECT_EQ(load_checkpoint(job.dp_world(), *model, folder()).at("best"), best);
    job.close();
  });
}

TEST_F(Checkpoint, refuses_a_training_state_that_is_not_JSON) {
  run_jobs(2, 1, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
    for (Json const& bad : {Json{{"a", Json::binary({1, 2})}}, Json{{"a", "\xff"}}})
      EXPECT_ANY_THROW(save_checkpoint(job.dp_world(), *model, folder(), {.training_state = bad}));
    job.close();
  });
  EXPECT_FALSE(fs::exists(folder()));
}

// A checkpoint with the state of one rank's optimizer could not be loaded with any optimizer.
TEST_F(Checkpoint, is_refused_when_ranks_pass_different_optimizers) {
  for (int const sharding : {1, 2}) {
    run_jobs(2, sharding, [&](MeshCollective const& job) {
      auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
      bool const first = job.rank() == 0;
      SGD sgd(model, {});
      AdamW adam(model, {});
      auto const expect_mismatch = [&](Optimizer const* own, std::string const& option) {
        auto const info = error_of<MismatchError>(
            [&] { save_checkpoint(job.dp_world(), *model, folder(), {.optimizer = own, .force = true}); });
        EXPECT_THAT(info.message + info.expected + info.got + info.hint, testing::HasSubstr(option));
      };
      expect_mismatch(first ? nullptr : &adam, "optimizer");
      expect_mismatch(first ? static_cast<Optimizer*>(&sgd) : &adam, "optimizer");
      if (first) adam.load_state({}, 3);
      expect_mismatch(&adam, "steps");
      job.close();
    });
  }
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(Checkpoint, is_refused_for_a_model_without_parameters) {
  class Nothing final : public TrainableModel {
    [[nodiscard]] std::vector<ModelUnit> units() const override { return {}; }
    [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const>) override { return {}; }
    void backward(std::span<Tensor const>) override {}
    void observe(TrainingObserver*) override {}
  };
  Nothing model;
  auto const info = error_of<UsageError>([&] { save_checkpoint(connect({.backend = "fake"}), model, folder()); });
  EXPECT_THAT(info.message, testing::HasSubstr("neither parameters nor buffers"));
}

TEST_F(Checkpoint, is_found_where_it_was_saved) {
  auto const alone = connect({.backend = "fake"});
  EXPECT_FALSE(has_checkpoint(alone, folder()));
  fs::create_directories(folder());
  EXPECT_FALSE(has_checkpoint(alone, folder()));
  fs::remove(folder());
  save(2);
  run_jobs(3, 1, [&](MeshCollective const& job) {
    EXPECT_TRUE(has_checkpoint(job.dp_world(), folder()));
    job.close();
  });
}

/// A training that takes this for "no checkpoint" would begin anew, and replace the good one.
TEST_F(Checkpoint, is_not_declared_missing_where_the_path_cannot_be_examined) {
  auto const alone = connect({.backend = "fake"});
  auto const loop = fs::path(folder().string() + ".loop");
  fs::create_symlink(loop, loop);
  EXPECT_THROW(static_cast<void>(has_checkpoint(alone, loop / "model")), IoError);
  fs::remove(loop);
}

TEST_F(Checkpoint, keeps_a_training_state_of_any_allowed_size) {
  auto const alone = connect({.backend = "fake"});
  auto const model = std::make_shared<TinyMlp>(sample);
  auto order = Json::array();
  for (int i = 0; i < 1'200'000; ++i) order.push_back(i);
  save_checkpoint(alone, *model, folder(), {.training_state = order});
  EXPECT_EQ(load_checkpoint(alone, *model, folder()), order);

  Json deep = 1;
  for (int i = 0; i < 130; ++i) deep = Json::array({deep});
  auto const info =
      error_of<UsageError>([&] { save_checkpoint(alone, *model, folder("deep"), {.training_state = deep}); });
  EXPECT_THAT(info.got, testing::HasSubstr("nesting"));
  EXPECT_FALSE(fs::exists(folder("deep")));
}

TEST_F(Checkpoint, is_not_replaced_by_mistake) {
  save(2);
  auto const before = files_in(folder());
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = distributed(job, std::make_shared<TinyMlp>(sample));
    SGD optimizer(model, {});
    EXPECT_THROW(save_checkpoint(job.dp_world(), *model, folder()), UsageError);
    EXPECT_EQ(job.rank() == 0 ? files_in(folder()) : before, before);
    auto const other = std::make_shared<TinyMlp>(sample);
    SGD of_other(other, {});
    EXPECT_THROW(save_checkpoint(job.dp_world(), *model, folder("other"), {.optimizer = &of_other}), UsageError);
    save_checkpoint(job.dp_world(), *model, folder(), {.optimizer = &optimizer, .force = true});
    job.close();
  });
  EXPECT_THAT(names_in(folder()), testing::ElementsAre("model.safetensors", "training_state.json"));
}

}  // namespace
}  // namespace crossrank::test
