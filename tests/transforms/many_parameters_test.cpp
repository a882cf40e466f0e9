// The cost of a model with many parameters.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/transforms/fully_shard.hpp>

#include "tests/support/growth.hpp"
#include "tests/transforms/training_job.hpp"

namespace crossrank::test {
namespace {

/// An engine with many short parameters, which measures how long its observer takes for its gradients.
class ManyParameters final : public TrainableModel {
 public:
  explicit ManyParameters(int parameters) {
    for (int i = 0; i < parameters; ++i) {
      if (i % 50 == 0) units_.push_back({.name = "unit" + std::to_string(i)});
      auto const parameter = std::make_shared<Parameter>();
      parameter->name = "p" + std::to_string(i);
      parameter->value = Tensor::zeros({1}, Dtype::f32);
      units_.back().parameters.push_back(parameter);
    }
  }
  [[nodiscard]] std::vector<ModelUnit> units() const override { return units_; }
  void observe(TrainingObserver* observer) override { observer_ = observer; }
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const>) override { return {}; }
  void backward(std::span<Tensor const>) override {
    for (auto unit = units_.size(); unit-- > 0;) {
      observer_->before_unit(unit, Pass::backward);
      auto const begin = thread_seconds();
      for (auto const& parameter : units_[unit].parameters) observer_->gradient_ready(*parameter);
      seconds += thread_seconds() - begin;
      observer_->after_unit(unit, Pass::backward);
    }
  }
  double seconds = 0;

 private:
  std::vector<ModelUnit> units_{};
  TrainingObserver* observer_ = nullptr;
};

TEST(ManyParameters, are_listed_in_linear_time) {
  auto const list = [](int parameters) {
    ManyParameters const model(parameters);
    EXPECT_EQ(std::ssize(model.parameters()), parameters);
  };
  EXPECT_LT(growth(list), max_growth);
}

TEST(ManyParameters, have_their_gradients_noted_in_linear_time) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    auto const seconds = [&](int parameters) {
      auto const engine = std::make_shared<ManyParameters>(parameters);
      auto const model = FullyShardTransform({.reshard_after_forward = true}, job).apply(engine);
      static_cast<void>(model->forward({}));
      model->backward({});
      return engine->seconds;
    };
    auto const base = std::max(seconds(2'000), seconds(2'000));
    // The larger model does not fit the caches, which takes 15 to 30 instead of 8. Quadratic time would take 64.
    constexpr double beyond_caches = 40;
    EXPECT_LT(std::min({seconds(16'000), seconds(16'000), seconds(16'000)}) / base, beyond_caches);
    job.close();
  });
}

}  // namespace
}  // namespace crossrank::test
