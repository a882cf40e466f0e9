#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/thread_ranks.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

using testing::HasSubstr;

constexpr int steps = 20;

std::vector<std::vector<double>> values_of(TrainableModel const& model) {
  std::vector<std::vector<double>> values;
  for (auto const& parameter : model.parameters()) values.push_back(reals_of(parameter->value));
  return values;
}

void expect_near(std::vector<std::vector<double>> const& got, std::vector<std::vector<double>> const& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_THAT(got[i], testing::Pointwise(testing::DoubleNear(tolerance), expected[i])) << i;
}

std::vector<std::vector<double>> trained_alone(TinyOptions const& model_options) {
  auto const alone = std::make_shared<TinyMlp>(model_options);
  AdamW optimizer(alone, {.lr = 0.02});
  train(*alone, optimizer, steps, 0, 1);
  return values_of(*alone);
}

struct Setting {
  char const* name;
  DDPTransformConfig config{};
  TinyOptions model{};
};

Setting const settings[] = {
    {"default", {}, {}},
    {"copied_gradients", {.gradient_as_bucket_view = false}, {.frozen = true}},
    {"static_graph_and_tied", {.static_graph = true}, {.widths = {3, 5, 5, 5, 2}, .tied = true}},
    {"unused", {.find_unused_parameters = true}, {.unused = true}},
    {"unused_with_copies", {.find_unused_parameters = true, .gradient_as_bucket_view = false}, {.unused = true}},
    {"two_dtypes", {}, {.bias_dtype = Dtype::f32}},
    {"repeated", {}, {.repeated_layer = 1}},
};

/// Equal to rounding: the sums of the batch are taken in another order.
TEST(DDP, trains_as_one_process_on_the_whole_batch) {
  for (auto const& setting : settings) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained_alone(setting.model);
    for (int const ranks : {1, 2, 3, 4}) {
      run_jobs(ranks, 1, [&](MeshCollective const& job) {
        auto mine = setting.model;
        mine.seed += job.rank();  // only the values of rank 0 count
        auto const model = DDPTransform(setting.config, job).apply(std::make_shared<TinyMlp>(mine));
        AdamW optimizer(model, {.lr = 0.02});
        train(*model, optimizer, steps, job.rank(), ranks);
        expect_near(values_of(*model), expected, setting.model.bias_dtype == Dtype::f32 ? 1e-5 : 1e-9);
        job.close();
      });
    }
  }
}

/// The old wrapper ends after the new one has begun to observe the engine.
TEST(DDP, trains_after_it_was_applied_again) {
  auto const expected = trained_alone({});
  run_jobs(2, 1, [&](MeshCollective const& job) {
    auto const engine = std::make_shared<TinyMlp>(TinyOptions{});
    std::shared_ptr<TrainableModel> model = DDPTransform({}, job).apply(engine);
    model = DDPTransform({}, job).apply(engine);
    AdamW optimizer(model, {.lr = 0.02});
    train(*model, optimizer, steps, job.rank(), 2);
    expect_near(values_of(*model), expected, 1e-9);
    job.close();
  });
}

TEST(DDP, leaves_the_model_of_one_rank_untouched) {
  auto const model = std::make_shared<TinyMlp>();
  EXPECT_EQ(DDPTransform({}, FakeCollective()).apply(model), model);
}

TEST(DDP, reduces_only_the_last_microbatch) {
  auto const alone = std::make_shared<TinyMlp>();
  run_pass(*alone, 0, 0, batch_rows);
  run_jobs(2, 1, [&](MeshCollective const& job) {
    auto const model =
        std::make_shared<DDPWrappedModel>(std::make_shared<TinyMlp>(), job.world().split_by(0), DDPTransformConfig{});
    for (int i = 0; i < 2; ++i) {
      auto const scope = model->accumulation_context(i == 1);
      auto const begin = job.rank() * 6 + i * 3;
      run_pass(*model, 0, begin, begin + 3);
    }
    auto const got = model->trained_tensors();
    auto const expected = alone->trained_tensors();
    for (std::size_t i = 0; i < got.size(); ++i) {
      auto sum = reals_of(expected[i].grad);
      for (auto& value : sum) value *= 2;  // two microbatches, each with a mean of its own
      EXPECT_THAT(reals_of(got[i].grad), testing::Pointwise(testing::DoubleNear(1e-12), sum)) << got[i].name;
    }
    job.close();
  });
}

TEST(DDP, sends_bf16_with_the_hook) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const model =
        std::make_shared<DDPWrappedModel>(std::make_shared<TinyMlp>(), job.world().split_by(0), DDPTransformConfig{});
    model->register_comm_hook(bf16_compress_hook());
    run_pass(*model, 0, 0, 3);
    TinyMlp exact;
    run_pass(exact, 0, 0, 3);
    auto const expected = exact.trained_tensors();
    auto const got = model->trained_tensors();
    bool rounded = false;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_THAT(reals_of(got[i].grad), testing::Pointwise(testing::DoubleNear(1e-2), reals_of(expected[i].grad)));
      rounded = rounded || reals_of(got[i].grad) != reals_of(expected[i].grad);
    }
    EXPECT_TRUE(rounded);
    job.close();
  });
}

TEST(DDP, builds_buckets_in_the_order_of_the_first_step) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    DDPWrappedModel model(std::make_shared<TinyMlp>(), job.world().split_by(0), DDPTransformConfig{});
    EXPECT_EQ(model.buckets().front().front(), "scale");
    EXPECT_EQ(model.buckets().front()[1], "layer2.bias");
    run_pass(model, 0, 0, 3);
    EXPECT_THAT(model.buckets().front(), testing::ElementsAre("scale", "layer2.bias", "layer2.weight", "layer1.bias",
                                                              "layer1.weight", "layer0.bias", "layer0.weight"));
    job.close();
  });
}

std::string error_on(int rank, MeshCollective const& job, std::function<void()> const& body) {
  try {
    body();
  } catch (std::exception const& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error on rank " << rank << " of " << job.world_size();
  return {};
}

TEST(DDP, names_a_parameter_that_differs) {
  run_jobs(3, 1, [](MeshCollective const& job) {
    TinyOptions mine;
    if (job.rank() == 2) mine.bias_dtype = Dtype::f32;
    auto const text = error_on(
        job.rank(), job, [&] { static_cast<void>(DDPTransform({}, job).apply(std::make_shared<TinyMlp>(mine))); });
    EXPECT_THAT(text, testing::AllOf(HasSubstr("layer0.bias"), HasSubstr("rank 2")));
  });
}

TEST(DDP, names_a_parameter_without_a_gradient_on_all_ranks) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>();
    auto const model = DDPTransform({}, job).apply(tiny);
    tiny->skip_last_bias = job.rank() == 1;
    EXPECT_THAT(error_on(job.rank(), job, [&] { run_pass(*model, 0, 0, 3); }), HasSubstr("layer2.bias"));
  });
}

TEST(DDP, refuses_sparse_gradients_and_a_mesh_that_shards) {
  run_thread_ranks(2, [](Collective const& world) {
    MeshCollective const sharding(world, {});
    auto const tiny = std::make_shared<TinyMlp>();
    EXPECT_THAT(error_on(world.rank(), sharding, [&] { static_cast<void>(DDPTransform({}, sharding).apply(tiny)); }),
                HasSubstr("sharding_world_size = 1"));
    MeshCollective const job(world, {.sharding_world_size = 1});
    tiny->units()[0].parameters[0]->grad_layout = GradientLayout::sparse;
    EXPECT_THAT(error_on(world.rank(), job, [&] { static_cast<void>(DDPTransform({}, job).apply(tiny)); }),
                testing::AllOf(HasSubstr("layer0.weight"), HasSubstr("sparse")));
    job.close();
  });
}

TEST(DDP, refuses_two_tensors_of_one_name) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.buffer = true});
    auto const refusal = [&] {
      return error_on(job.rank(), job, [&] { static_cast<void>(DDPTransform({}, job).apply(tiny)); });
    };
    tiny->units()[1].parameters[1]->name = "layer0.bias";
    EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("layer0.bias"), HasSubstr("have this name")));
    tiny->units()[1].parameters[1]->name = "layer1.bias";
    tiny->buffers().front()->name = "scale";
    EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("scale"), HasSubstr("have this name")));
    job.close();
  });
}

/// A rank may use a parameter in an earlier microbatch than the one whose gradients are reduced.
TEST(DDP, gives_all_ranks_the_gradient_of_a_parameter_that_one_rank_used_before_the_last_microbatch) {
  TinyMlp alone;
  run_pass(alone, 0, 0, 3);
  auto expected = reals_of(alone.units().back().parameters[1]->grad);
  for (auto& value : expected) value /= 2;  // the average with the other rank
  for (bool const views : {true, false}) {
    run_jobs(2, 1, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>();
      DDPWrappedModel model(tiny, job.world().split_by(0),
                            {.find_unused_parameters = true, .gradient_as_bucket_view = views});
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        auto const scope = model.accumulation_context(microbatch == 2);
        tiny->skip_last_bias = microbatch > 0 || job.rank() == 1;
        run_pass(model, 0, 0, 3);
      }
      for (auto const& tensor : model.trained_tensors()) {
        if (tensor.name != "layer2.bias") continue;
        auto const all =
            job.world().all_gather_objects(tensor.grad.defined() ? reals_of(tensor.grad) : std::vector<double>{});
        EXPECT_EQ(all[0], all[1]) << views;
        EXPECT_THAT(all[0], testing::Pointwise(testing::DoubleNear(1e-12), expected)) << views;
      }
      model.zero_grad();
      run_pass(model, 0, 0, 3);  // no rank uses it any more
      for (auto const& tensor : model.trained_tensors()) {
        if (tensor.name == "layer2.bias") {
          EXPECT_FALSE(tensor.grad.defined()) << views;
        }
      }
      job.close();
    });
  }
}

/// An engine with one parameter that puts a new tensor into `grad` in each pass, and notes what it gets.
class ReplacingEngine final : public TrainableModel {
 public:
  explicit ReplacingEngine(double gradient) : gradient_(gradient) {
    weight_->name = "w";
    weight_->value = Tensor::of<double>({1, 2}, {2});
  }
  [[nodiscard]] std::vector<ModelUnit> units() const override { return {{"unit", {weight_}}}; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override {
    observer_->before_unit(0, Pass::forward);
    observer_->after_unit(0, Pass::forward);
    return {inputs.front()};
  }
  void backward(std::span<Tensor const>) override {
    observer_->before_unit(0, Pass::backward);
    weight_->grad = Tensor::of<double>({gradient_, gradient_}, {2});
    observer_->gradient_ready(*weight_);
    observer_->after_unit(0, Pass::backward);
  }
  void observe(TrainingObserver* observer) override { observer_ = observer; }

 private:
  std::shared_ptr<Parameter> weight_ = std::make_shared<Parameter>();
  double gradient_;
  TrainingObserver* observer_ = nullptr;
};

TEST(DDP, averages_gradients_that_the_engine_has_replaced) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const model = DDPTransform({}, job).apply(std::make_shared<ReplacingEngine>(job.rank() == 0 ? 1 : 3));
    std::vector<Tensor> const inputs{Tensor::of<double>({1}, {1})};
    for (int step = 0; step < 2; ++step) {
      static_cast<void>(model->forward(inputs));
      model->backward(inputs);
      EXPECT_THAT(reals_of(model->trained_tensors().front().grad), testing::Each(2.0));
    }
    job.close();
  });
}

/// An engine that answers every call itself, and notes what it was asked.
class OverridingEngine final : public TrainableModel {
 public:
  [[nodiscard]] std::vector<ModelUnit> units() const override { return model_.units(); }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override { return model_.forward(inputs); }
  void backward(std::span<Tensor const> gradients) override { model_.backward(gradients); }
  void observe(TrainingObserver* observer) override { model_.observe(observer); }
  [[nodiscard]] std::vector<TrainedTensor> trained_tensors() override { return {{.name = "own trained tensor"}}; }
  [[nodiscard]] std::vector<TensorShard> sharded_state_dict() override { return {{.name = "own shard"}}; }
  void zero_grad() override { notes.emplace_back("zero_grad"); }
  [[nodiscard]] double sum_over_shards(double local) override { return 10 * local; }
  void abort(std::string_view why) noexcept override { notes.emplace_back(why); }
  std::vector<std::string> notes{};

 private:
  TinyMlp model_{};
};

TEST(DDP, calls_what_the_engine_overrides) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const engine = std::make_shared<OverridingEngine>();
    auto const model = DDPTransform({}, job).apply(engine);
    EXPECT_EQ(model->trained_tensors().front().name, "own trained tensor");
    EXPECT_EQ(model->sharded_state_dict().front().name, "own shard");
    EXPECT_EQ(model->sum_over_shards(2), 20);
    model->zero_grad();
    model->abort("tensor on fire");
    EXPECT_THAT(engine->notes, testing::ElementsAre("zero_grad", "tensor on fire"));
  });
}

TEST(FullyShard, sums_drops_gradients_and_aborts_through_the_engine) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const engine = std::make_shared<OverridingEngine>();
    auto const model = FullyShardTransform({}, job).apply(engine);
    EXPECT_EQ(model->sum_over_shards(2), 40);  // twice what the engine returns
    model->zero_grad();
    model->abort("tensor on fire");
    EXPECT_THAT(engine->notes, testing::ElementsAre("zero_grad", "tensor on fire"));
  });
}

TEST(DDP, refuses_a_parameter_that_was_frozen_when_the_transform_was_applied) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.frozen = true});
    auto const model = DDPTransform({}, job).apply(tiny);
    run_pass(*model, 0, 0, 3);
    for (auto const& parameter : tiny->parameters()) parameter->requires_grad = true;
    EXPECT_THAT(error_on(job.rank(), job, [&] { run_pass(*model, 1, 0, 3); }),
                testing::AllOf(HasSubstr("frozen"), HasSubstr("layer0.bias")));
  });
}

TEST(DDP, refuses_a_hook_with_one_function) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    DDPWrappedModel model(std::make_shared<TinyMlp>(), job.world().split_by(0), DDPTransformConfig{});
    EXPECT_THROW(model.register_comm_hook({.compress = bf16_compress_hook().compress}), UsageError);
    EXPECT_THROW(model.register_comm_hook({.decompress = bf16_compress_hook().decompress}), UsageError);
    model.register_comm_hook({});
    job.close();
  });
}

/// Notes the order in which transforms are applied.
class NotingTransform final : public BaseModelTransform {
 public:
  NotingTransform(std::vector<std::string>& notes, std::string name) : notes_(notes), name_(std::move(name)) {}
  [[nodiscard]] std::shared_ptr<TrainableModel> apply(std::shared_ptr<TrainableModel> model) override {
    bool const is_wrapped = dynamic_cast<DDPWrappedModel const*>(model.get()) != nullptr;
    notes_.push_back(name_ + (is_wrapped ? " gets the wrapped model" : " gets the model"));
    return model;
  }

 private:
  std::vector<std::string>& notes_;
  std::string name_;
};

TEST(DDP, is_applied_between_the_transforms_around_it) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    std::vector<std::string> notes;
    std::vector<std::shared_ptr<BaseModelTransform>> const transforms{
        std::make_shared<NotingTransform>(notes, "first"), std::make_shared<DDPTransform>(DDPTransformConfig{}, job),
        std::make_shared<NotingTransform>(notes, "last")};
    auto const model = apply_transforms(transforms, std::make_shared<TinyMlp>());
    EXPECT_THAT(notes, testing::ElementsAre("first gets the model", "last gets the wrapped model"));
    run_pass(*model, 0, 0, 3);
    job.close();
  });
}

/// A throw anywhere in a step ends it on all ranks, whose errors contain its message.
TEST(DDP, ends_the_step_on_all_ranks_when_one_throws) {
  for (std::string const where : {"forward 1", "backward 2", "backward 0"}) {
    run_jobs(3, 1, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>();
      auto const model = DDPTransform({}, job).apply(tiny);
      run_pass(*model, 0, 0, 3);
      tiny->on_event = [&](std::string const& at) {
        if (job.rank() == 1 && at == where) throw std::runtime_error("tensor on fire");
      };
      EXPECT_THAT(error_on(job.rank(), job, [&] { run_pass(*model, 1, 0, 3); }), HasSubstr("tensor on fire")) << where;
    });
  }
}

TEST(DDP, checks_that_the_graph_is_static) {
  run_jobs(2, 1, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>();
    auto const model = DDPTransform({.find_unused_parameters = true, .static_graph = true}, job).apply(tiny);
    run_pass(*model, 0, 0, 3);
    tiny->skip_last_bias = true;
    EXPECT_THAT(error_on(job.rank(), job, [&] { run_pass(*model, 1, 0, 3); }), HasSubstr("not static"));
  });
}

TEST(DDP, clips_by_the_norm_of_all_gradients) {
  auto const model = std::make_shared<TinyMlp>();
  run_pass(*model, 0, 0, 3);
  auto const before = clip_grad_norm(*model, 0.01);
  EXPECT_GT(before, 0.01);
  EXPECT_NEAR(clip_grad_norm(*model, 1), 0.01, 1e-6);
}

}  // namespace
}  // namespace crossrank::test
