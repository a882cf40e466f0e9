#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>
#include <torch/version.h>

#include <crossrank/error.hpp>

#include "tests/support/error_of.hpp"
#include "tests/transforms/torch/small_net.hpp"
#include "tests/transforms/training_job.hpp"

namespace libtorch_test {
namespace {

using testing::HasSubstr;
using xr::test::run_jobs;

using ShardSetting = Setting<xr::FullyShardTransformConfig>;

std::vector<ShardSetting> shard_settings() {
  return {{"default"},
          {"reshard, frozen", {.reshard_after_forward = true}, {.frozen = true}},
          {"reshard, tied", {.reshard_after_forward = true}, {.tied = true}},
          {"tied with the root", {}, {.tied_root = true}},
          {"reshard, tied with the root", {.reshard_after_forward = true}, {.tied_root = true}},
          {"unused", {.reshard_after_forward = true}, {.unused = true}},
          {"repeated", {}, {.repeats = true}},
          {"reshard, repeated", {.reshard_after_forward = true}, {.repeats = true}},
          {"float", {.reshard_after_forward = true}, {.dtype = at::kFloat}, 2e-5},
          {"computes in BF16",
           {.reshard_after_forward = true, .mixed_precision = {.param_dtype = xr::Dtype::bf16}},
           {.dtype = at::kFloat},
           0.2}};
}

TEST(TorchFullyShard, trains_as_one_process_on_the_whole_batch) {
  for (auto const& setting : shard_settings()) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained_alone(setting.net);
    for (int const ranks : {1, 2, 3}) {
      run_jobs(ranks, ranks, [&](xr::MeshCollective const& job) {
        auto mine = setting.net;
        mine.seed += job.rank();  // only the values of rank 0 count
        auto model = xr::torch::fully_shard(Net(mine), job, setting.config);
        ASSERT_EQ(model.sharded() != nullptr, ranks > 1);
        torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.02));
        train(model, optimizer, job.rank(), ranks, setting.net.dtype);
        EXPECT_LE(largest_difference(whole(model), expected), setting.tolerance) << ranks << " ranks";
        job.close();
      });
    }
  }
}

TEST(TorchFullyShard, trains_with_the_optimizer_of_crossrank) {
  auto const expected = trained_alone({});
  run_jobs(2, 2, [&](xr::MeshCollective const& job) {
    auto model = xr::torch::fully_shard(Net(), job, {.reshard_after_forward = true});
    xr::AdamW optimizer(model.model(), {.lr = 0.02});
    for (int step = 0; step < steps; ++step) {
      model.zero_grad();
      run_pass(model, step, job.rank() * 6, job.rank() * 6 + 6);
      optimizer.step();
    }
    EXPECT_LE(largest_difference(whole(model), expected), rounding);
    job.close();
  });
}

/// The memory of a unit is there only while it runs, in both directions.
TEST(TorchFullyShard, holds_two_units_at_most) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::fully_shard(net, job, {.reshard_after_forward = true});
    std::vector<std::int64_t> sizes;
    net->blocks[0]->on_forward = [&] {
      sizes = {net->blocks[0]->weight.numel(), net->blocks[1]->weight.numel(), net->first->weight.numel()};
    };
    run_pass(model, 0, 0, 3);
    EXPECT_THAT(sizes, testing::ElementsAre(25, 0, 15));
    for (auto const& parameter : net->parameters()) {
      EXPECT_EQ(parameter.numel(), 0);
      EXPECT_FALSE(parameter.grad().defined());
    }
    auto const memory = model.sharded()->memory();
    EXPECT_GT(memory.peak_gathered, memory.largest_unit);
    EXPECT_LE(memory.peak_gathered, 3 * memory.largest_unit);  // the root unit and two blocks
    EXPECT_EQ(memory.gathered, 0U);
    EXPECT_EQ(memory.full_gradients, 0U);
    // A sharded parameter is an error to compute with, not a wrong number.
    EXPECT_THROW(static_cast<void>(net->first->forward(at::ones({1, 3}, at::kDouble))), c10::Error);
    job.close();
  });
}

/// A view that the caller keeps has the values while the unit runs. Later it is never stale.
TEST(TorchFullyShard, makes_views_that_are_kept_errors) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::fully_shard(net, job, {.reshard_after_forward = true});
    std::vector<at::Tensor> views;
    net->blocks[0]->on_forward = [&] {
      views.push_back(net->blocks[0]->weight.detach());
      EXPECT_NE(views.back().sum().item<double>(), 0.0);
    };
    for (int step = 0; step < 2; ++step) run_pass(model, step, 0, 3);
    ASSERT_EQ(views.size(), 2U);
    for (auto const& view : views) {
      EXPECT_EQ(view.storage().nbytes(), 0U);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9)
      try {
        static_cast<void>(view.sum());
        ADD_FAILURE() << "readable";
      } catch (c10::Error const& e) {
        EXPECT_THAT(e.what(), testing::HasSubstr("were given back"));
      }
#endif
    }
    job.close();
  });
}

TEST(TorchFullyShard, accumulates_as_one_process) {
  NetImpl alone;
  run_pass(alone, 0, 0, batch_rows);
  double square = 0;
  for (auto const& parameter : alone.parameters()) square += (parameter.grad() * 2).pow(2).sum().item<double>();
  for (bool const sync : {false, true}) {
    run_jobs(2, 2, [&](xr::MeshCollective const& job) {
      auto model = xr::torch::fully_shard(Net(), job, {.reshard_after_forward = true, .sync_grad_accum = sync});
      for (int i = 0; i < 2; ++i) {
        auto const scope = model.accumulation_context(i == 1);
        auto const begin = job.rank() * 6 + i * 3;
        run_pass(model, 0, begin, begin + 3);
      }
      EXPECT_NEAR(xr::clip_grad_norm(*model.model(), 0.5), std::sqrt(square), 1e-9);
      // The optimizer of LibTorch sees the clipped gradients.
      double mine = 0;
      for (auto const& rows : model.parameters()) mine += rows.grad().pow(2).sum().item<double>();
      EXPECT_NEAR(job.dp_world().all_reduce_value(mine), 0.25, 1e-5);
      job.close();
    });
  }
}

TEST(TorchFullyShard, drops_gradients_that_the_optimizer_drops) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    auto model = xr::torch::fully_shard(Net(), job, {.reshard_after_forward = true});
    run_pass(model, 0, 0, 3);
    std::vector<at::Tensor> expected;
    for (auto const& rows : model.parameters()) expected.push_back(rows.grad().clone());
    auto parameters = model.parameters();
    parameters.front().mutable_grad() = at::Tensor();  // an optimizer of one parameter
    run_pass(model, 0, 0, 3);
    for (std::size_t i = 1; i < expected.size(); ++i) expected[i] = expected[i] * 2;
    std::vector<at::Tensor> got;
    for (auto const& rows : model.parameters()) got.push_back(rows.grad());
    EXPECT_LE(largest_difference(got, expected), rounding);
    for (auto& rows : parameters) rows.mutable_grad() = at::Tensor();
    run_pass(model, 0, 0, 3);
    EXPECT_LE(largest_difference({model.parameters().back().grad() * 2}, {expected.back()}), rounding);
    job.close();
  });
}

TEST(TorchFullyShard, gives_gradients_to_its_inputs_and_runs_without_them) {
  NetImpl alone;
  auto const expected = inputs(0, 0, 3).set_requires_grad(true);
  auto const output = alone.forward(expected * 2);
  loss_of(output, 0, 3).backward();
  run_jobs(2, 2, [&](xr::MeshCollective const& job) {
    auto model = xr::torch::fully_shard(Net(), job, {.reshard_after_forward = true});
    auto const input = inputs(0, 0, 3).set_requires_grad(true);
    loss_of(model.forward(input * 2), 0, 3).backward();
    EXPECT_LE(largest_difference({input.grad()}, {expected.grad()}), rounding);
    at::NoGradGuard const no_grad;
    auto const again = model.forward(input * 2);
    EXPECT_FALSE(again.requires_grad());
    EXPECT_LE(largest_difference({again}, {output.detach()}), rounding);
    job.close();
  });
}

TEST(TorchFullyShard, names_a_parameter_whose_tensor_was_replaced) {
  for (bool const loads : {true, false}) {
    run_jobs(2, 2, [&](xr::MeshCollective const& job) {
      Net net;
      auto model = xr::torch::fully_shard(net, job);
      if (loads) {
        load_other_values(net);
      } else {
        net->to(at::kFloat);
      }
      try {
        run_pass(model, 0, 0, 3);
        ADD_FAILURE() << "trained after " << (loads ? "load" : "to");
      } catch (xr::Error const& e) {
        EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("was replaced"), HasSubstr("scale")));
      }
    });
  }
}

TEST(TorchFullyShard, notices_a_change_in_place_before_the_backward_pass) {
  for (bool const output : {false, true}) {
    SigmoidImpl alone;
    EXPECT_THAT(change_in_place(alone, output), HasSubstr("modified by an inplace operation"));
    run_jobs(2, 2, [&](xr::MeshCollective const& job) {
      auto model = xr::torch::fully_shard(std::make_shared<SigmoidImpl>(), job);
      EXPECT_THAT(change_in_place(model, output), HasSubstr("modified by an inplace operation")) << output;
    });
  }
}

/// Units in a container of LibTorch, which takes the address of `forward`.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 2; ++i) layers->push_back(std::make_shared<xr::torch::Unit<BlockImpl>>(5));
    register_module("layers", layers);
    to(at::kDouble);
    fill(*this, 1);
  }
  at::Tensor forward(at::Tensor const& x) { return layers->forward(x); }
  torch::nn::Sequential layers{};
};

TEST(TorchFullyShard, trains_units_in_a_sequential) {
  auto const input = at::cos(at::arange(10, at::kDouble)).reshape({2, 5});
  StackImpl alone;
  alone.forward(input).sum().backward();
  run_jobs(2, 2, [&](xr::MeshCollective const& job) {
    auto model = xr::torch::fully_shard(std::make_shared<StackImpl>(), job, {.reshard_after_forward = true});
    EXPECT_EQ(model.model()->units().size(), 3U);
    model.forward(input).sum().backward();
    std::map<std::string, at::Tensor> expected;
    for (auto const& item : alone.named_parameters()) expected.emplace(item.key(), item.value().grad());
    for (auto const& shard : model.model()->trained_tensors()) {
      auto const first = job.rank() == 0 ? 0 : 3;  // of five rows, the first rank has three
      auto const rows = expected.at(shard.name).narrow(0, first, shard.grad.shape()[0]);
      EXPECT_LE(largest_difference({xr::torch::to_torch(shard.grad)}, {rows}), rounding) << shard.name;
    }
    job.close();
  });
}

/// A module whose results are its parameter and a view of it, as of an embedding that is tied elsewhere.
struct GivesWeightImpl : torch::nn::Module {
  GivesWeightImpl() { weight = register_parameter("weight", at::cos(at::arange(12, at::kDouble)).reshape({4, 3})); }
  std::vector<at::Tensor> forward(at::Tensor const& x) {
    return {x.matmul(weight.t()), weight, weight.narrow(0, 1, 2)};
  }
  at::Tensor weight{};
};
struct HasUnitImpl : torch::nn::Module {
  HasUnitImpl() { unit = register_module("unit", std::make_shared<xr::torch::Unit<GivesWeightImpl>>()); }
  std::vector<at::Tensor> forward(at::Tensor const& x) { return unit->forward(x); }
  std::shared_ptr<xr::torch::Unit<GivesWeightImpl>> unit{};
};

at::Tensor loss_of(std::vector<at::Tensor> const& results) {
  return results[0].sum() + results[1].pow(2).sum() + results[2].sin().sum();
}

template <class M>
void expect_results_that_are_parameters() {
  auto const input = at::sin(at::arange(6, at::kDouble)).reshape({2, 3});
  M alone;
  auto const loss = loss_of(alone.forward(input));
  loss.backward();
  auto const gradient = alone.parameters().front().grad();
  run_jobs(2, 2, [&](xr::MeshCollective const& job) {
    auto model = xr::torch::fully_shard(std::make_shared<M>(), job, {.reshard_after_forward = true});
    auto const mine = loss_of(model.forward(input));
    EXPECT_NEAR(mine.template item<double>(), loss.template item<double>(), 1e-12);
    mine.backward();
    auto const rows = model.parameters().front().grad();
    EXPECT_LE(largest_difference({rows}, {gradient.narrow(0, job.rank() * 2, 2)}), rounding);
    job.close();
  });
}

TEST(TorchFullyShard, returns_copies_of_parameters) {
  expect_results_that_are_parameters<GivesWeightImpl>();
  expect_results_that_are_parameters<HasUnitImpl>();
}

TEST(TorchFullyShard, outlives_a_unit_that_was_replaced) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    auto module = std::make_shared<HasUnitImpl>();
    {
      auto const model = xr::torch::fully_shard(module, job);
      module->unit = module->replace_module("unit", std::make_shared<xr::torch::Unit<GivesWeightImpl>>());
    }
    EXPECT_EQ(module->forward(at::ones({2, 3}, at::kDouble)).size(), 3U);
    job.close();
  });
}

TEST(TorchFullyShard, names_a_parameter_of_a_unit_that_was_replaced) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    auto module = std::make_shared<HasUnitImpl>();
    auto model = xr::torch::fully_shard(module, job);
    auto const step = [&] { static_cast<void>(model.forward(at::ones({2, 3}, at::kDouble))); };
    step();
    module->unit = module->replace_module("unit", std::make_shared<xr::torch::Unit<GivesWeightImpl>>());
    auto const info = xr::test::error_of<xr::UsageError>(step);
    EXPECT_THAT(info.message, HasSubstr("has got a parameter"));
    EXPECT_THAT(info.resource, HasSubstr("unit."));
  });
}

/// A `forward` with default arguments or several of them still works through a unit.
struct DefaultsImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x, at::Tensor const& y = {}) { return y.defined() ? x + y : x; }
};
struct OverloadsImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) { return x; }
  at::Tensor forward(at::Tensor const& x, double factor) { return x * factor; }
};

TEST(TorchFullyShard, has_units_of_any_forward) {
  auto const x = at::ones({2});
  xr::torch::Unit<DefaultsImpl> defaults;
  xr::torch::Unit<OverloadsImpl> overloads;
  EXPECT_EQ(defaults.forward(x).sum().item<double>(), 2);
  EXPECT_EQ(defaults.forward(x, x).sum().item<double>(), 4);
  EXPECT_EQ(overloads.forward(x).sum().item<double>(), 2);
  EXPECT_EQ(overloads.forward(x, 3.0).sum().item<double>(), 6);
}

TEST(TorchFullyShard, ends_the_step_on_all_ranks_when_one_throws) {
  for (bool const in_backward : {false, true}) {
    run_jobs(3, 3, [&](xr::MeshCollective const& job) {
      Net net;
      auto model = xr::torch::fully_shard(net, job);
      run_pass(model, 0, 0, 3);
      auto const burn = [] { throw std::runtime_error("tensor on fire"); };
      if (job.rank() == 1 && !in_backward) net->blocks[1]->on_forward = burn;
      if (job.rank() == 1 && in_backward) {
        net->blocks[0]->weight.register_hook([&](at::Tensor const& grad) {
          burn();
          return grad;
        });
      }
      try {
        run_pass(model, 1, 0, 3);
        ADD_FAILURE() << "no error on rank " << job.rank();
      } catch (std::exception const& e) {
        EXPECT_THAT(e.what(), HasSubstr("tensor on fire"));
      }
    });
  }
}

}  // namespace
}  // namespace libtorch_test
