#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test::fully_shard_test {
namespace {

using testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

constexpr int steps = 20;

Values trained_alone(TinyOptions const& options) {
  auto const alone = std::make_shared<TinyMlp>(options);
  AdamW optimizer(alone, {.lr = 0.02});
  train(*alone, optimizer, steps, 0, 1);
  Values values;
  for (auto const& parameter : alone->parameters()) values[parameter->name] = reals_of(parameter->value);
  return values;
}

struct Setting {
  char const* name;
  FullyShardTransformConfig config{};
  TinyOptions model{};
  double tolerance = 1e-9;
};

std::vector<Setting> settings() {
  TinyOptions const tied{.widths = {3, 5, 5, 5, 2}, .tied = true};
  return {{"default", {}, {}},
          {"reshard", {.reshard_after_forward = true}, {.frozen = true}},
          {"tied", {.reshard_after_forward = true}, tied},
          {"frozen_unit", {.reshard_after_forward = true}, {.frozen_layer = 1}},
          {"frozen_tied_unit", {}, {.widths = {3, 5, 5, 5, 2}, .tied = true, .frozen_layer = 2}},
          {"flattened", {.use_hybrid_sharding = false}, {.unused = true}},
          {"two_dtypes", {.reshard_after_forward = true}, {.bias_dtype = Dtype::f32}, 1e-5},
          {"repeated", {}, {.repeated_layer = 1}},
          {"repeated, resharded", {.reshard_after_forward = true}, {.repeated_layer = 1}},
          {"repeated, ready each time", {}, {.repeated_layer = 1, .ready_each_run = true}},
          {"repeated, ready each time, resharded",
           {.reshard_after_forward = true},
           {.repeated_layer = 1, .ready_each_run = true}}};
}

void expect_trained(FullyShardTransformConfig const& config, TinyOptions const& options, MeshCollective const& job,
                    Values const& expected, double tolerance) {
  auto mine = options;
  mine.seed += job.rank();  // only the values of rank 0 count
  auto const model = FullyShardTransform(config, job).apply(std::make_shared<TinyMlp>(mine));
  AdamW optimizer(model, {.lr = 0.02});
  train(*model, optimizer, steps, job.rank(), job.world_size());
  auto* const sharded = dynamic_cast<FullyShardedModel*>(model.get());
  ASSERT_NE(sharded, nullptr);
  std::size_t seen = 0;
  sharded->for_each_parameter([&](std::string const& name, Tensor const& value) {
    EXPECT_THAT(reals_of(value), testing::Pointwise(testing::DoubleNear(tolerance), expected.at(name))) << name;
    ++seen;
  });
  EXPECT_EQ(seen, expected.size());
}

/// Equal to rounding: the sums of the batch are taken in another order.
TEST(FullyShard, trains_as_one_process_on_the_whole_batch) {
  for (auto const& setting : settings()) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained_alone(setting.model);
    for (auto const& [ranks, sharding] : {std::pair{2, 2}, {3, 3}, {4, 4}, {4, 2}}) {
      run_jobs(ranks, sharding, [&](MeshCollective const& job) {
        expect_trained(setting.config, setting.model, job, expected, setting.tolerance);
        job.close();
      });
    }
  }
}

TEST(FullyShard, reshards_to_smaller_groups) {
  TinyOptions const repeated{.repeated_layer = 1};
  auto const expected = trained_alone({});
  auto const expected_repeated = trained_alone(repeated);
  run_jobs(4, 4, [&](MeshCollective const& job) {
    expect_trained({.reshard_after_forward = 2}, {}, job, expected, 1e-9);
    expect_trained({.reshard_after_forward = 2}, repeated, job, expected_repeated, 1e-9);
    EXPECT_THROW(
        static_cast<void>(FullyShardTransform({.reshard_after_forward = 3}, job).apply(std::make_shared<TinyMlp>())),
        UsageError);
    job.close();
  });
}

TEST(FullyShard, computes_in_other_dtypes_and_keeps_its_shards) {
  auto const expected = trained_alone({});
  run_jobs(2, 2, [&](MeshCollective const& job) {
    expect_trained({.mixed_precision = {.param_dtype = Dtype::f32, .reduce_dtype = Dtype::f32}}, {}, job, expected,
                   0.05);
    expect_trained({.mixed_precision = {.fp8_enabled = true}}, {}, job, expected, 0.6);
    job.close();
  });
}

/// Ranks outside a small group of the exception's rank wait for it in the whole group, and the other way round.
TEST(FullyShard, ends_all_groups_when_one_rank_throws) {
  struct Case {
    FullyShardTransformConfig config{};
    int sharding = 4;
  };
  for (auto const& [config, sharding] : {Case{{.reshard_after_forward = 2}, 4}, Case{{}, 2}}) {
    for (bool const is_standard : {true, false}) {
      for (std::string const where : {"forward 1", "backward 2", "backward 0"}) {
        run_jobs(4, sharding, [&, &config = config](MeshCollective const& job) {
          auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.widths = {3, 16, 16, 16, 2}});
          auto const model = FullyShardTransform(config, job).apply(tiny);
          run_pass(*model, 0, 0, 3);
          tiny->on_event = [&](std::string const& at) {
            if (job.rank() != 1 || at != where) return;
            if (is_standard) throw std::runtime_error("tensor on fire");
            throw 7;
          };
          std::string text = "no error";
          try {
            run_pass(*model, 1, 0, 3);
          } catch (std::exception const& e) {
            text = e.what();
          } catch (int) {
            text = "an exception of an unknown type";
          }
          EXPECT_THAT(text, HasSubstr(is_standard ? "tensor on fire" : "of an unknown type"))
              << job.rank() << " at " << where;
        });
      }
    }
  }
}

TEST(FullyShard, begins_with_the_buffers_of_rank_0) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.buffer = true, .seed = 1.0 + job.rank()});
    auto const before = reals_of(tiny->buffers().front()->value);
    auto const model = FullyShardTransform({}, job).apply(tiny);
    auto const after = reals_of(model->buffers().front()->value);
    auto const all = job.world().all_gather_objects(after);
    EXPECT_EQ(all[0], all[1]);
    EXPECT_EQ(after == before, job.rank() == 0);
    job.close();
  });
}

/// An engine that computes in BF16 and notes the dtype of the gradients of its outputs.
class Bf16Engine final : public TrainableModel {
 public:
  Bf16Engine() {
    weight_->name = "w";
    weight_->value = Tensor::zeros({2}, Dtype::f32);
  }
  [[nodiscard]] std::vector<ModelUnit> units() const override { return {{"unit", {weight_}}}; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const>) override {
    observer_->before_unit(0, Pass::forward);
    observer_->after_unit(0, Pass::forward);
    return {Tensor::zeros({2}, Dtype::bf16)};
  }
  void backward(std::span<Tensor const> gradients) override {
    observer_->before_unit(0, Pass::backward);
    EXPECT_EQ(gradients.front().dtype(), Dtype::bf16);
    weight_->grad = Tensor::zeros({2}, weight_->value.dtype());
    observer_->gradient_ready(*weight_);
    observer_->after_unit(0, Pass::backward);
  }
  void observe(TrainingObserver* observer) override { observer_ = observer; }

 private:
  std::shared_ptr<Parameter> weight_ = std::make_shared<Parameter>();
  TrainingObserver* observer_ = nullptr;
};

TEST(FullyShard, gives_the_engine_gradients_in_the_dtype_of_its_outputs) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    FullyShardTransformConfig const config{.mixed_precision = {.param_dtype = Dtype::bf16, .output_dtype = Dtype::f32}};
    auto const model = FullyShardTransform(config, job).apply(std::make_shared<Bf16Engine>());
    auto const outputs = model->forward(std::vector{Tensor::zeros({2}, Dtype::f32)});
    EXPECT_EQ(outputs.front().dtype(), Dtype::f32);
    model->backward(outputs);
    job.close();
  });
}

TEST(FullyShard, refuses_dtypes_that_it_cannot_compute_with) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    for (auto const& [field, mixed] :
         {std::pair<char const*, MixedPrecisionConfig>{"param_dtype", {.param_dtype = Dtype::f8_e4m3}},
          {"reduce_dtype", {.reduce_dtype = Dtype::i32}},
          {"output_dtype", {.output_dtype = Dtype::u8}},
          {"fp8_format", {.fp8_enabled = true, .fp8_format = Dtype::f32}}}) {
      try {
        static_cast<void>(FullyShardTransform({.mixed_precision = mixed}, job).apply(std::make_shared<TinyMlp>()));
        ADD_FAILURE() << field << " was accepted";
      } catch (UsageError const& e) {
        EXPECT_THAT(e.what(), HasSubstr(std::string("mixed_precision.") + field));
      }
    }
    job.close();
  });
}

TEST(FullyShard, refuses_to_read_values_that_were_given_back) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>();
    auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(tiny);
    struct Holder final : TrainingObserver {
      void before_unit(std::size_t unit, Pass pass) override {
        if (unit != 1 || pass != Pass::forward) return;
        held = tiny->units()[1].parameters[0]->value;
        EXPECT_NO_THROW(static_cast<void>(held.bytes()));
      }
      void after_unit(std::size_t, Pass) override {}
      void gradient_ready(Parameter&) override {}
      TinyMlp* tiny = nullptr;
      Tensor held{};
    } holder;
    holder.tiny = tiny.get();
    model->observe(&holder);
    auto& held = holder.held;
    run_pass(*model, 0, 0, 3);
    try {
      static_cast<void>(held.bytes());
      FAIL() << "readable";
    } catch (UsageError const& e) {
      EXPECT_THAT(e.what(), HasSubstr("layer1.weight"));
    }
    job.close();
  });
}

TEST(FullyShard, holds_two_units_at_most) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    TinyOptions const options{.widths = {3, 64, 64, 64, 64, 2}};
    auto const model =
        FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>(options));
    run_pass(*model, 0, 0, 3);
    auto const memory = dynamic_cast<FullyShardedModel&>(*model).memory();
    EXPECT_LE(memory.peak_gathered, 2 * memory.largest_unit);
    EXPECT_LE(memory.peak_full_gradients, 2 * memory.largest_unit);
    EXPECT_EQ(memory.gathered, 0U);
    EXPECT_EQ(memory.full_gradients, 0U);
    job.close();
  });
}

TEST(FullyShard, accumulates_and_clips_as_one_process) {
  for (auto const& [sync, repeated_layer] : {std::pair{false, -1}, {true, -1}, {false, 1}, {true, 1}}) {
    TinyOptions const options{.repeated_layer = repeated_layer};
    auto const alone = std::make_shared<TinyMlp>(options);
    run_pass(*alone, 0, 0, batch_rows);
    auto const expected = 2 * clip_grad_norm(*alone, 1e9);
    run_jobs(2, 2, [&, is_sync = sync](MeshCollective const& job) {
      auto const model =
          FullyShardTransform({.sync_grad_accum = is_sync}, job).apply(std::make_shared<TinyMlp>(options));
      auto& sharded = dynamic_cast<FullyShardedModel&>(*model);
      for (int i = 0; i < 2; ++i) {
        auto const scope = sharded.accumulation_context(i == 1);
        auto const begin = job.rank() * 6 + i * 3;
        run_pass(*model, 0, begin, begin + 3);
      }
      EXPECT_NEAR(clip_grad_norm(*model, 0.5), expected, 1e-9);
      EXPECT_NEAR(clip_grad_norm(*model, 1e9), 0.5, 1e-5);
      job.close();
    });
  }
}

/// An engine with one unit. Each run in the backward pass adds 1 to the gradient.
class RepeatingEngine final : public TrainableModel {
 public:
  RepeatingEngine() {
    weight_->name = "w";
    weight_->value = Tensor::zeros({2}, Dtype::f32);
  }
  [[nodiscard]] std::vector<ModelUnit> units() const override { return {{"unit", {weight_}}}; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override {
    for (int run = 0; run < forward_runs; ++run) {
      observer_->before_unit(0, Pass::forward);
      observer_->after_unit(0, Pass::forward);
    }
    return {inputs.front()};
  }
  void backward(std::span<Tensor const>) override {
    for (int run = 0; run < backward_runs; ++run) {
      observer_->before_unit(0, Pass::backward);
      for (auto& value : weight_->grad.as_mutable<float>()) value += 1;
      observer_->gradient_ready(*weight_);
      observer_->after_unit(0, Pass::backward);
    }
  }
  void observe(TrainingObserver* observer) override { observer_ = observer; }
  int forward_runs = 1;
  int backward_runs = 1;

 private:
  std::shared_ptr<Parameter> weight_ = std::make_shared<Parameter>();
  TrainingObserver* observer_ = nullptr;
};

/// The last forward pass may be another one than that of the backward pass, such as one of an evaluation.
TEST(FullyShard, sums_all_runs_of_a_unit_whatever_the_last_forward_pass_ran) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const engine = std::make_shared<RepeatingEngine>();
    auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(engine);
    std::vector const inputs{Tensor::zeros({2}, Dtype::f32)};
    for (auto const& [forward_runs, backward_runs] : {std::pair{1, 2}, {2, 1}, {3, 3}, {0, 1}}) {
      engine->forward_runs = forward_runs;
      engine->backward_runs = backward_runs;
      model->zero_grad();
      static_cast<void>(model->forward(inputs));
      model->backward(inputs);
      for (auto const& trained : model->trained_tensors())
        EXPECT_THAT(reals_of(trained.grad), testing::Each(backward_runs)) << forward_runs;
    }
    job.close();
  });
}

/// A sum in BF16 would lose most of the later microbatches: 256 + 1 is 256 there.
TEST(FullyShard, sums_the_gradients_of_many_microbatches_in_the_dtype_of_the_reduction) {
  constexpr int microbatches = 300;
  for (auto const reduced : {std::optional<Dtype>(), std::optional(Dtype::f32)}) {
    run_jobs(2, 2, [&](MeshCollective const& job) {
      TinyOptions const options{.dtype = Dtype::f32, .bias_dtype = Dtype::f32};
      auto const model =
          FullyShardTransform({.mixed_precision = {.param_dtype = Dtype::bf16, .reduce_dtype = reduced}}, job)
              .apply(std::make_shared<TinyMlp>(options));
      auto& sharded = dynamic_cast<FullyShardedModel&>(*model);
      run_pass(*model, 0, 0, 3);
      auto const once = model->trained_tensors();
      std::vector<std::vector<double>> expected;
      for (auto const& tensor : once) {
        expected.push_back(reals_of(tensor.grad));
        for (auto& value : expected.back()) value *= microbatches;
      }
      model->zero_grad();
      for (int i = 0; i < microbatches; ++i) {
        auto const scope = sharded.accumulation_context(i + 1 == microbatches);
        run_pass(*model, 0, 0, 3);
      }
      auto const got = model->trained_tensors();
      for (std::size_t i = 0; i < got.size(); ++i) {
        auto const values = reals_of(got[i].grad);
        for (std::size_t k = 0; k < values.size(); ++k)
          EXPECT_NEAR(values[k], expected[i][k], 0.01 * std::abs(expected[i][k]) + 1e-6) << got[i].name;
      }
      job.close();
    });
  }
}

TEST(FullyShard, ends_the_step_on_all_ranks_when_one_throws) {
  for (std::string const where : {"forward 1", "backward 1"}) {
    run_jobs(3, 3, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>();
      auto const model = FullyShardTransform({}, job).apply(tiny);
      tiny->on_event = [&](std::string const& at) {
        if (job.rank() == 1 && at == where) throw std::runtime_error("tensor on fire");
      };
      try {
        run_pass(*model, 1, 0, 3);
        ADD_FAILURE() << "no error on rank " << job.rank();
      } catch (std::exception const& e) {
        EXPECT_THAT(e.what(), HasSubstr("tensor on fire"));
      }
    });
  }
}

}  // namespace
}  // namespace crossrank::test::fully_shard_test
