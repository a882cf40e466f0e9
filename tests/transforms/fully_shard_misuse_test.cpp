// What users do to a sharded model besides training it step by step.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/error_of.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test::fully_shard_misuse_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pointwise;

std::map<std::string, std::vector<double>> all_values(TrainableModel& model) {
  std::map<std::string, std::vector<double>> values;
  dynamic_cast<FullyShardedModel&>(model).for_each_parameter(
      [&](std::string const& name, Tensor const& value) { values[name] = reals_of(value); });
  return values;
}

/// Copies of all parameters that a user has kept, with the values that they had.
struct Held {
  std::string name{};
  Tensor tensor{};
  std::vector<double> values{};
};

/// Keeps all parameters that can be read at an event.
struct Keeper final : TrainingObserver {
  explicit Keeper(TinyMlp& its_model) : model(its_model) {}
  void before_unit(std::size_t, Pass) override { keep(); }
  void after_unit(std::size_t, Pass) override { keep(); }
  void gradient_ready(Parameter&) override {}
  void keep() {
    for (auto const& parameter : model.parameters()) {
      try {
        held.push_back({parameter->name, parameter->value, reals_of(parameter->value)});
        held.push_back({parameter->name, parameter->value.reshape({parameter->value.numel()}), held.back().values});
      } catch (UsageError const&) {
        // It was given back.
      }
    }
  }
  TinyMlp& model;
  std::vector<Held> held{};
};

/// Returns how many held tensors can be read. Those have the values that they had.
std::size_t count_readable(std::vector<Held> const& held) {
  std::size_t readable = 0;
  for (auto const& one : held) {
    try {
      EXPECT_EQ(reals_of(one.tensor), one.values) << one.name << " is stale";
      ++readable;
    } catch (UsageError const& e) {
      EXPECT_THAT(e.what(), HasSubstr(one.name));
    }
  }
  return readable;
}

struct Sharding {
  char const* name;
  FullyShardTransformConfig config{};
};

std::vector<Sharding> shardings() {
  return {{"reshard", {.reshard_after_forward = true}},
          {"keep", {}},
          {"smaller", {.reshard_after_forward = 1}},
          {"mixed", {.reshard_after_forward = true, .mixed_precision = {.param_dtype = Dtype::f32}}},
          {"fp8", {.reshard_after_forward = true, .mixed_precision = {.fp8_enabled = true}}}};
}

TEST(FullyShardMisuse, a_held_parameter_is_valid_or_an_error) {
  for (auto const& [name, config] : shardings()) {
    SCOPED_TRACE(name);
    run_jobs(2, 2, [&, &config = config](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>(TinyOptions{.widths = {3, 5, 5, 5, 2}, .tied = true});
      auto const model = FullyShardTransform(config, job).apply(tiny);
      SGD optimizer(model, {.lr = 0.1});
      Keeper keeper(*tiny);
      model->observe(&keeper);
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        run_pass(*model, step, job.rank() * 3, job.rank() * 3 + 3);
        EXPECT_GT(keeper.held.size(), 20U);
        EXPECT_EQ(count_readable(keeper.held), 0U);  // the step gives all back
        optimizer.step();
        keeper.keep();
        EXPECT_EQ(count_readable(keeper.held), 0U);
      }
      job.close();
    });
  }
}

TEST(FullyShardMisuse, parameters_stay_readable_between_forward_and_the_change_of_the_shards) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>();
    auto const model = FullyShardTransform({}, job).apply(tiny);
    auto const x = Tensor::zeros({3, 3}, Dtype::f64);
    static_cast<void>(model->forward(std::span(&x, 1)));
    Keeper keeper(*tiny);
    keeper.keep();
    EXPECT_EQ(count_readable(keeper.held), keeper.held.size());
    EXPECT_EQ(keeper.held.size(), 2 * tiny->parameters().size());
    static_cast<void>(model->trained_tensors());  // whoever has these changes the values
    EXPECT_EQ(count_readable(keeper.held), 0U);
    job.close();
  });
}

TEST(FullyShardMisuse, visited_parameters_are_errors_after_the_visit) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const model = FullyShardTransform({}, job).apply(std::make_shared<TinyMlp>());
    std::vector<Held> held;
    dynamic_cast<FullyShardedModel&>(*model).for_each_parameter([&](std::string const& name, Tensor const& value) {
      held.push_back({name, value, reals_of(value)});
    });
    EXPECT_EQ(count_readable(held), 0U);
    job.close();
  });
}

/// Values that can be read after an exception are correct. The model itself refuses further steps.
TEST(FullyShardMisuse, held_parameters_survive_an_exception_in_the_middle_of_a_unit) {
  for (std::string const where : {"forward 0", "forward 2", "backward 2", "backward 0"}) {
    for (auto const& [name, config] : shardings()) {
      SCOPED_TRACE(where + " " + name);
      run_jobs(3, 3, [&, &config = config](MeshCollective const& job) {
        auto const tiny = std::make_shared<TinyMlp>();
        auto model = FullyShardTransform(config, job).apply(tiny);
        Keeper keeper(*tiny);
        model->observe(&keeper);
        tiny->on_event = [&](std::string const& at) {
          if (job.rank() == 1 && at == where) throw std::runtime_error("tensor on fire");
        };
        EXPECT_THROW(run_pass(*model, 0, 0, 3), std::exception);
        static_cast<void>(count_readable(keeper.held));
        tiny->on_event = {};
        EXPECT_THROW(run_pass(*model, 1, 0, 3), Error);
        static_cast<void>(count_readable(keeper.held));
        model->zero_grad();
        model = {};
        static_cast<void>(count_readable(keeper.held));
      });
    }
  }
}

void expect_gradients(TrainableModel& model, std::map<std::string, std::vector<double>> const& expected,
                      MeshCollective const& job) {
  for (auto const& tensor : model.trained_tensors()) {
    ASSERT_TRUE(tensor.grad.defined()) << tensor.name;
    auto const& whole = expected.at(tensor.name);
    std::int64_t rows = 1;
    for (auto const& shard : model.sharded_state_dict()) {
      if (shard.name == tensor.name && !shard.shape.empty()) rows = std::max<std::int64_t>(shard.shape[0], 1);
    }
    auto const row = static_cast<std::int64_t>(whole.size()) / rows;
    auto const chunk = (rows + job.world_size() - 1) / job.world_size();
    auto const begin = std::min(chunk * job.rank(), rows) * row;
    std::vector<double> const mine(whole.begin() + begin, whole.begin() + begin + tensor.grad.numel());
    EXPECT_THAT(reals_of(tensor.grad), Pointwise(testing::DoubleNear(1e-12), mine)) << tensor.name;
  }
}

/// Gradients of one process, `times` times.
std::map<std::string, std::vector<double>> gradients_alone(TinyOptions const& options, double times) {
  auto const alone = std::make_shared<TinyMlp>(options);
  run_pass(*alone, 0, 0, batch_rows);
  std::map<std::string, std::vector<double>> gradients;
  for (auto const& tensor : alone->trained_tensors()) {
    gradients[tensor.name] = reals_of(tensor.grad);
    for (auto& value : gradients[tensor.name]) value *= times;
  }
  return gradients;
}

void run_own_rows(TrainableModel& model, MeshCollective const& job) {
  auto const share = batch_rows / job.world_size();
  run_pass(model, 0, job.rank() * share, (job.rank() + 1) * share);
}

TEST(FullyShardMisuse, zero_grad_drops_gradients_at_any_time) {
  auto const once = gradients_alone({}, 1);
  auto const twice = gradients_alone({}, 2);
  run_jobs(3, 3, [&](MeshCollective const& job) {
    auto const tiny = std::make_shared<TinyMlp>();
    auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(tiny);
    model->zero_grad();
    model->zero_grad();
    run_own_rows(*model, job);
    expect_gradients(*model, once, job);
    run_own_rows(*model, job);  // adds
    expect_gradients(*model, twice, job);
    for (std::string const where : {"forward 2", "backward 2"}) {
      tiny->on_event = [&](std::string const& at) {
        if (at == where) model->zero_grad();
      };
      run_own_rows(*model, job);
      expect_gradients(*model, once, job);
    }
    tiny->on_event = {};
    model->zero_grad();
    for (auto const& tensor : model->trained_tensors()) EXPECT_FALSE(tensor.grad.defined()) << tensor.name;
    auto const before = all_values(*model);
    AdamW optimizer(model, {.lr = 0.1});
    optimizer.step();  // nothing has a gradient
    EXPECT_EQ(all_values(*model), before);
    job.close();
  });
}

TEST(FullyShardMisuse, zero_grad_drops_what_was_accumulated) {
  auto const once = gradients_alone({}, 1);
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>());
    auto& sharded = dynamic_cast<FullyShardedModel&>(*model);
    {
      auto const scope = sharded.accumulation_context(false);
      run_own_rows(*model, job);
    }
    EXPECT_GT(sharded.memory().full_gradients, 0U);
    model->zero_grad();
    EXPECT_EQ(sharded.memory().full_gradients, 0U);
    run_own_rows(*model, job);
    expect_gradients(*model, once, job);
    job.close();
  });
}

/// An engine may run the backward pass of one forward pass again.
TEST(FullyShardMisuse, a_second_backward_pass_adds_its_gradients) {
  auto const x = Tensor::of<double>({0.1, 0.2, 0.3, -0.4, 0.5, 0.6}, {2, 3});
  auto const upstream = Tensor::of<double>({1, 2, 3, 4}, {2, 2});
  for (auto const& options : {TinyOptions{}, TinyOptions{.widths = {3, 5, 5, 5, 2}, .tied = true}}) {
    auto const alone = std::make_shared<TinyMlp>(options);
    static_cast<void>(alone->forward(std::span(&x, 1)));
    for (int i = 0; i < 2; ++i) alone->backward(std::span(&upstream, 1));
    std::map<std::string, std::vector<double>> expected;
    for (auto const& tensor : alone->trained_tensors()) expected[tensor.name] = reals_of(tensor.grad);
    for (auto const& [name, config] : shardings()) {
      if (config.mixed_precision.param_dtype || config.mixed_precision.fp8_enabled) continue;
      SCOPED_TRACE(std::string(name) + (options.tied ? ", tied" : ""));
      run_jobs(2, 2, [&, &config = config](MeshCollective const& job) {
        auto const model = FullyShardTransform(config, job).apply(std::make_shared<TinyMlp>(options));
        static_cast<void>(model->forward(std::span(&x, 1)));
        static_cast<void>(model->trained_tensors());  // gives the gathered values back
        for (int i = 0; i < 2; ++i) model->backward(std::span(&upstream, 1));
        expect_gradients(*model, expected, job);
        job.close();
      });
    }
  }
}

/// An engine that defines a gradient anew, instead of adding to the one that is there.
class ReplacingMlp final : public TrainableModel, private TrainingObserver {
 public:
  [[nodiscard]] std::vector<ModelUnit> units() const override { return inner_->units(); }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override { return inner_->forward(inputs); }
  void backward(std::span<Tensor const> gradients) override { inner_->backward(gradients); }
  void observe(TrainingObserver* observer) override {
    observer_ = observer;
    inner_->observe(observer == nullptr ? nullptr : this);
  }
  std::function<void(Parameter&)> change = [](Parameter& parameter) { parameter.grad = parameter.grad.clone(); };

 private:
  void before_unit(std::size_t unit, Pass pass) override { observer_->before_unit(unit, pass); }
  void after_unit(std::size_t unit, Pass pass) override { observer_->after_unit(unit, pass); }
  void gradient_ready(Parameter& parameter) override {
    change(parameter);
    observer_->gradient_ready(parameter);
  }
  std::shared_ptr<TinyMlp> inner_ = std::make_shared<TinyMlp>();
  TrainingObserver* observer_ = nullptr;
};

TEST(FullyShardMisuse, gradients_that_an_engine_replaces_are_reduced) {
  auto const expected = gradients_alone({}, 1);
  run_jobs(2, 2, [&](MeshCollective const& job) {
    auto const model =
        FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<ReplacingMlp>());
    run_own_rows(*model, job);
    expect_gradients(*model, expected, job);
    job.close();
  });
}

TEST(FullyShardMisuse, gradients_that_do_not_fit_are_refused) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const engine = std::make_shared<ReplacingMlp>();
    engine->change = [](Parameter& parameter) {
      if (parameter.name == "layer1.bias") parameter.grad = {};
    };
    auto const model = FullyShardTransform({}, job).apply(engine);
    try {
      run_own_rows(*model, job);
      ADD_FAILURE() << "no error on rank " << job.rank();
    } catch (Error const& e) {
      EXPECT_THAT(e.what(), HasSubstr("layer1.bias"));
    }
  });
}

TEST(FullyShardMisuse, ranks_without_rows_of_a_parameter_take_part) {
  for (std::int64_t const rows : {0, 1, 2}) {
    TinyOptions const options{.widths = {3, 2, 1, 2}, .unused = true, .unused_rows = rows};
    run_jobs(4, 4, [&](MeshCollective const& job) {
      auto const model =
          FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>(options));
      AdamW optimizer(model, {.lr = 0.02});
      run_own_rows(*model, job);
      for (auto const& tensor : model->trained_tensors()) EXPECT_EQ(tensor.grad.defined(), tensor.name != "unused");
      clip_grad_norm(*model, 0.1);
      optimizer.step();
      auto const alone = std::make_shared<TinyMlp>(options);
      AdamW whole(alone, {.lr = 0.02});
      run_pass(*alone, 0, 0, batch_rows);
      clip_grad_norm(*alone, 0.1);
      whole.step();
      auto const values = all_values(*model);
      for (auto const& parameter : alone->parameters()) {
        EXPECT_THAT(values.at(parameter->name), Pointwise(testing::DoubleNear(1e-9), reals_of(parameter->value)))
            << parameter->name;
      }
      job.close();
    });
  }
}

TEST(FullyShardMisuse, loaded_parameters_replace_the_values_of_all_ranks) {
  TinyOptions const options{.widths = {3, 5, 5, 5, 2}, .tied = true};
  auto const value_of = [](std::string const& name, Shape const& shape) {
    auto value = Tensor::empty(shape, Dtype::f32);
    std::vector<float> values(as_size(value.numel()));
    std::iota(values.begin(), values.end(), static_cast<float>(name.size()));
    std::ranges::copy(std::as_bytes(std::span(values)), value.mutable_bytes().begin());
    return value;
  };
  std::map<std::string, Shape> shapes;
  for (auto const& parameter : TinyMlp(options).parameters()) shapes[parameter->name] = parameter->value.shape();
  for (auto const& [name, config] : shardings()) {
    SCOPED_TRACE(name);
    run_jobs(4, 4, [&, &config = config](MeshCollective const& job) {
      auto const model = FullyShardTransform(config, job).apply(std::make_shared<TinyMlp>(options));
      run_own_rows(*model, job);
      dynamic_cast<FullyShardedModel&>(*model).load_parameters(
          [&](std::string const& each) { return value_of(each, shapes.at(each)); });
      for (auto const& [each, values] : all_values(*model))
        EXPECT_EQ(values, reals_of(value_of(each, shapes.at(each)))) << each;
      job.close();
    });
  }
}

TEST(FullyShardMisuse, a_loaded_parameter_of_another_shape_leaves_the_group_usable) {
  run_jobs(4, 2, [&](MeshCollective const& job) {
    auto const model = FullyShardTransform({}, job).apply(std::make_shared<TinyMlp>());
    auto const before = all_values(*model);
    if (job.rank() == 0) {
      auto const info = error_of<UsageError>([&] {
        dynamic_cast<FullyShardedModel&>(*model).load_parameters([](std::string const&) { return Tensor(); });
      });
      EXPECT_TRUE(info.group_usable);
      EXPECT_EQ(info.operation, "FullyShardedModel.load_parameters");
    }
    EXPECT_EQ(all_values(*model), before);
    job.close();
  });
}

TEST(FullyShardMisuse, a_forward_pass_alone_changes_nothing) {
  auto const expected = gradients_alone({}, 1);
  for (auto const& [name, config] : shardings()) {
    if (config.mixed_precision.param_dtype || config.mixed_precision.fp8_enabled) continue;
    SCOPED_TRACE(name);
    run_jobs(2, 2, [&, &config = config](MeshCollective const& job) {
      auto const model = FullyShardTransform(config, job).apply(std::make_shared<TinyMlp>());
      auto const x = Tensor::zeros({3, 3}, Dtype::f64);
      for (int i = 0; i < 3; ++i) static_cast<void>(model->forward(std::span(&x, 1)));
      run_own_rows(*model, job);
      expect_gradients(*model, expected, job);
      EXPECT_EQ(dynamic_cast<FullyShardedModel&>(*model).memory().gathered, 0U);
      job.close();
    });
  }
}

/// A unit that no rank runs has no gradients, and the others are right.
TEST(FullyShardMisuse, all_ranks_may_leave_out_a_unit) {
  TinyOptions const options{.widths = {3, 5, 5, 5, 2}};
  run_jobs(3, 3, [&](MeshCollective const& job) {
    auto const alone = std::make_shared<TinyMlp>(options);
    auto const tiny = std::make_shared<TinyMlp>(options);
    alone->skipped_layer = tiny->skipped_layer = 1;
    auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(tiny);
    AdamW optimizer(model, {.lr = 0.02});
    AdamW whole(alone, {.lr = 0.02});
    train(*model, optimizer, 5, job.rank(), 3);
    train(*alone, whole, 5, 0, 1);
    for (auto const& tensor : model->trained_tensors())
      EXPECT_EQ(tensor.grad.defined(), !tensor.name.starts_with("layer1")) << tensor.name;
    auto const values = all_values(*model);
    for (auto const& parameter : alone->parameters()) {
      EXPECT_THAT(values.at(parameter->name), Pointwise(testing::DoubleNear(1e-9), reals_of(parameter->value)))
          << parameter->name;
    }
    job.close();
  });
}

/// The units are alike, so that no call has a wrong length.
TEST(FullyShardMisuse, ranks_that_leave_out_different_units_are_named) {
  TinyOptions const options{.widths = {3, 5, 5, 5, 5, 2}};
  for (bool const reshards : {true, false}) {
    run_jobs(3, 3, [&](MeshCollective const& job) {
      auto const tiny = std::make_shared<TinyMlp>(options);
      auto const model = FullyShardTransform({.reshard_after_forward = reshards}, job).apply(tiny);
      run_own_rows(*model, job);
      tiny->skipped_layer = job.rank() == 1 ? 3 : 2;
      try {
        run_own_rows(*model, job);
        ADD_FAILURE() << "no error on rank " << job.rank();
      } catch (MismatchError const& e) {
        EXPECT_THAT(e.what(), AllOf(HasSubstr("of unit layer3"), HasSubstr("rank 1 calls ")));
        EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(1));
      }
    });
  }
}

}  // namespace
}  // namespace crossrank::test::fully_shard_misuse_test
