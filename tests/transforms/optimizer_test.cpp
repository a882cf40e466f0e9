// The optimizers against PyTorch 2.15: its values after 20 steps of the same gradients, on a CPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/optimizer.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/error_of.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank::test {
namespace {

constexpr int numbers = 6;
using Numbers = std::array<double, numbers>;

/// Gradients of later numbers are larger.
double largest_gradient(std::size_t i) { return std::pow(10, static_cast<double>(i % numbers) - 3); }

/// A model of one parameter whose gradients are set by hand.
class OneParameter final : public TrainableModel {
 public:
  explicit OneParameter(Dtype dtype, int count = numbers) {
    parameter_->name = "w";
    parameter_->value = filled(dtype, count, [](int i) { return std::cos(0.9 * i) * 0.5; });
  }
  void set_gradient(int step) {
    auto const& value = parameter_->value;
    parameter_->grad = filled(value.dtype(), static_cast<int>(value.numel()), [&](int i) {
      return std::sin(1.3 * i + 0.7 * step + 0.1) * largest_gradient(as_size(i));
    });
  }
  [[nodiscard]] Tensor const& value() const { return parameter_->value; }
  [[nodiscard]] Tensor const& gradient() const { return parameter_->grad; }

  [[nodiscard]] std::vector<ModelUnit> units() const override { return {{"unit", {parameter_}}}; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const>) override { return {}; }
  void backward(std::span<Tensor const>) override {}
  void observe(TrainingObserver*) override {}

 private:
  template <class Function>
  static Tensor filled(Dtype dtype, int count, Function const& function) {
    auto tensor = Tensor::empty({count}, dtype);
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(function(i));
    transforms::write_reals(tensor, 0, values);
    return tensor;
  }

  std::shared_ptr<Parameter> parameter_ = std::make_shared<Parameter>();
};

/// Within a few roundings of the largest number that took part, which may be the gradient: PyTorch's kernels fuse a
/// multiplication and an addition.
void expect_close(Tensor const& got, Numbers const& expected) {
  auto const rounding = got.dtype() == Dtype::f64 ? 0x1p-52 : 0x1p-23;
  auto const values = reals_of(got);
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected.at(i), 3 * rounding * std::max(std::abs(expected.at(i)), largest_gradient(i))) << i;
}

template <class Make>
std::shared_ptr<OneParameter> trained(Dtype dtype, Make const& make, std::unique_ptr<Optimizer>& optimizer,
                                      int count = numbers) {
  auto model = std::make_shared<OneParameter>(dtype, count);
  optimizer = make(model);
  for (int step = 0; step < 20; ++step) {
    model->set_gradient(step);
    optimizer->step();
  }
  return model;
}

auto const make_sgd = [](auto const& model) {
  return std::make_unique<SGD>(model, SGDOptions{.lr = 0.1, .weight_decay = 0.01});
};
auto const make_momentum = [](auto const& model) {
  return std::make_unique<SGD>(model, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
};
auto const make_adamw = [](auto const& model) {
  return std::make_unique<AdamW>(model, AdamWOptions{.lr = 0.02, .beta2 = 0.99, .weight_decay = 0.1});
};

TEST(Optimizers, sgd_has_the_values_of_pytorch) {
  std::unique_ptr<Optimizer> optimizer;
  expect_close(trained(Dtype::f32, make_sgd, optimizer)->value(),
               {0x1.f5c55ep-2, 0x1.360c8cp-2, -0x1.ceaee6p-4, -0x1.0f845ap-2, 0x1.58c016p-1, -0x1.7e281ep+3});
  expect_close(trained(Dtype::f64, make_sgd, optimizer)->value(),
               {0x1.f5c55f5622af5p-2, 0x1.360c8a6aad0a2p-2, -0x1.ceaee981a1fddp-4, -0x1.0f845c86adaf9p-2,
                0x1.58c0185d8522cp-1, -0x1.7e281a3fa3c85p+3});
}

TEST(Optimizers, momentum_has_the_values_of_pytorch) {
  std::unique_ptr<Optimizer> optimizer;
  expect_close(trained(Dtype::f32, make_momentum, optimizer)->value(),
               {0x1.c2ff3ap-2, 0x1.131026p-2, -0x1.29c970p-5, 0x1.09003ep-1, -0x1.e28bb8p+0, -0x1.8ee28ep+6});
  expect_close(optimizer->state().at("w.momentum_buffer"),
               {0x1.4e9080p-5, 0x1.3f9478p-5, 0x1.6e3e0ep-4, -0x1.b593bcp-1, -0x1.c92546p+3, 0x1.607dc0p+2});
  expect_close(trained(Dtype::f64, make_momentum, optimizer)->value(),
               {0x1.c2ff37fc5be91p-2, 0x1.1310213690e6ap-2, -0x1.29c96e8113560p-5, 0x1.09004694473efp-1,
                -0x1.e28be1b02cefbp+0, -0x1.8ee2961b33731p+6});
}

TEST(Optimizers, adamw_has_the_values_of_pytorch) {
  std::unique_ptr<Optimizer> optimizer;
  expect_close(trained(Dtype::f32, make_adamw, optimizer)->value(),
               {0x1.8202a2p-2, 0x1.dcb84cp-3, -0x1.36e4dep-4, -0x1.6058c4p-2, -0x1.a960f4p-2, -0x1.a36ac4p-3});
  EXPECT_EQ(optimizer->state().at("w.step").item<double>(), 20);
  expect_close(optimizer->state().at("w.exp_avg"),
               {-0x1.339146p-16, 0x1.6c7d48p-10, 0x1.2fd2b0p-7, -0x1.6e5580p-4, -0x1.67daa2p+0, 0x1.6c6078p+0});
  expect_close(optimizer->state().at("w.exp_avg_sq"),
               {0x1.74e774p-24, 0x1.475a3ap-17, 0x1.b8f98ep-11, 0x1.8af33ap-4, 0x1.1c0facp+3, 0x1.bfdd0cp+9});
  expect_close(trained(Dtype::f64, make_adamw, optimizer)->value(),
               {0x1.820291a4d024ap-2, 0x1.dcb84152352a4p-3, -0x1.36e4cea9e4800p-4, -0x1.6058b90167481p-2,
                -0x1.a960dd198717bp-2, -0x1.a36ab6c208a7dp-3});
}

/// Longer than a chunk, and in a dtype that is converted: each number is trained like the same number alone.
TEST(Optimizers, train_each_number_for_itself) {
  constexpr int many = 2 * 1024 + 5;
  for (auto const dtype : {Dtype::f32, Dtype::bf16}) {
    std::unique_ptr<Optimizer> optimizer;
    auto const all = reals_of(trained(dtype, make_adamw, optimizer, many)->value());
    auto const few = reals_of(trained(dtype, make_adamw, optimizer)->value());
    EXPECT_THAT(std::vector<double>(all.begin(), all.begin() + numbers), testing::ElementsAreArray(few));
    EXPECT_EQ(optimizer->state().at("w.exp_avg").dtype(), Dtype::f32);
    EXPECT_NE(all.back(), 0.5 * std::cos(0.9 * (many - 1)));
  }
}

TEST(Optimizers, clipping_has_the_values_of_pytorch) {
  OneParameter model(Dtype::f32);
  model.set_gradient(0);
  EXPECT_NEAR(clip_grad_norm(model, 0.5), 0x1.020b68p+5, 0x1p-17);
  expect_close(model.gradient(),
               {0x1.9f69fap-20, 0x1.405a8ap-13, 0x1.5b55e8p-11, -0x1.8069aap-7, -0x1.083726p-3, 0x1.ee8448p-2});
}

TEST(Optimizers, refuse_two_parameters_of_one_name) {
  auto const model = std::make_shared<TinyMlp>(TinyOptions{.widths = {3, 5, 5, 5, 2}, .tied = true});
  SGD const accepted(model, {});  // a tied parameter is one parameter
  model->units()[1].parameters[1]->name = "layer0.bias";
  auto const refused = [&] { AdamW const optimizer(model, {}); };
  EXPECT_EQ(error_of<UsageError>(refused).resource, "layer0.bias");
}

TEST(Optimizers, refuse_to_train_nothing) {
  EXPECT_THROW(SGD(nullptr, {}), UsageError);
  EXPECT_THROW(AdamW(nullptr, {}), UsageError);
}

TEST(Optimizers, refuse_options_out_of_range) {
  auto const model = std::make_shared<OneParameter>(Dtype::f32);
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::pair<std::string, AdamWOptions>> const adam{
      {"lr", {.lr = -1}},      {"lr", {.lr = nan}},
      {"beta1", {.beta1 = 1}}, {"beta1", {.beta1 = -3}},
      {"beta2", {.beta2 = 1}}, {"beta2", {.beta2 = nan}},
      {"eps", {.eps = -1}},    {"weight_decay", {.weight_decay = -0.1}}};
  for (auto const& [name, options] : adam) {
    auto const refused = [&, &options = options] { AdamW const optimizer(model, options); };
    EXPECT_EQ(error_of<UsageError>(refused).resource, name);
  }
  std::vector<std::pair<std::string, SGDOptions>> const sgd{{"lr", {.lr = std::numeric_limits<double>::infinity()}},
                                                            {"momentum", {.momentum = -2}},
                                                            {"weight_decay", {.weight_decay = nan}}};
  for (auto const& [name, options] : sgd) {
    auto const refused = [&, &options = options] { SGD const optimizer(model, options); };
    EXPECT_EQ(error_of<UsageError>(refused).resource, name);
  }
  AdamW const lowest(model, {.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0});
}

TEST(Optimizers, refuse_an_option_that_a_schedule_has_moved_out_of_range) {
  auto const model = std::make_shared<OneParameter>(Dtype::f32);
  model->set_gradient(1);
  auto const before = reals_of(model->value());
  AdamW adam(model, {});
  adam.options().beta1 = 1;
  EXPECT_EQ(error_of<UsageError>([&] { adam.step(); }).resource, "beta1");
  SGD sgd(model, {});
  sgd.options().lr = -0.5;
  EXPECT_EQ(error_of<UsageError>([&] { sgd.step(); }).resource, "lr");
  EXPECT_EQ(reals_of(model->value()), before);
}

TEST(Optimizers, refuse_a_negative_number_of_steps) {
  SGD sgd(std::make_shared<OneParameter>(Dtype::f32), {});
  EXPECT_EQ(error_of<UsageError>([&] { sgd.load_state({}, -5); }).got, "-5");
  EXPECT_EQ(sgd.steps(), 0);
}

/// A step with another learning rate is that of an optimizer that has it from the start.
TEST(Optimizers, take_a_new_learning_rate) {
  auto const scheduled = std::make_shared<OneParameter>(Dtype::f64);
  auto const fixed = std::make_shared<OneParameter>(Dtype::f64);
  SGD sgd(scheduled, {.lr = 0.5});
  SGD expected(fixed, {.lr = 0.125});
  sgd.options().lr = 0.125;
  for (auto const& model : {scheduled, fixed}) model->set_gradient(1);
  sgd.step();
  expected.step();
  EXPECT_EQ(reals_of(scheduled->value()), reals_of(fixed->value()));

  AdamW adam(scheduled, {.lr = 0.5});
  adam.options().lr = 0;
  adam.options().weight_decay = 0;
  adam.step();
  EXPECT_EQ(reals_of(scheduled->value()), reals_of(fixed->value())) << "a step of length 0";
  EXPECT_EQ(adam.param_group().at("lr"), 0.0);
}

/// Without a share of the mean, only the new gradient counts, whatever the one before was. As `torch.optim.AdamW`.
TEST(Optimizers, adamw_without_momentum_forgets_a_large_gradient) {
  auto const model = std::make_shared<OneParameter>(Dtype::f32, 1);
  AdamW adam(model, {.lr = 0.125, .beta1 = 0, .beta2 = 0, .weight_decay = 0});
  model->set_gradient(1);
  Tensor gradient = model->gradient();
  gradient.as_mutable<float>()[0] = 1e6F;
  adam.step();
  auto const before = reals_of(model->value())[0];
  gradient.as_mutable<float>()[0] = 1e-3F;
  adam.step();
  EXPECT_NEAR(before - reals_of(model->value())[0], 0.125, 1e-5);
}

/// 0 * inf is NaN, but a weight decay of 0 adds nothing.
TEST(Optimizers, sgd_without_weight_decay_keeps_infinity) {
  for (double const momentum : {0.0, 0.5}) {
    auto const model = std::make_shared<OneParameter>(Dtype::f32);
    Tensor(model->value()).as_mutable<float>()[0] = -std::numeric_limits<float>::infinity();
    SGD sgd(model, {.lr = 0.5, .momentum = momentum});
    for (int step = 1; step < 3; ++step) {
      model->set_gradient(step);
      sgd.step();
    }
    EXPECT_EQ(reals_of(model->value())[0], -std::numeric_limits<double>::infinity()) << momentum;
  }
}

}  // namespace
}  // namespace crossrank::test
