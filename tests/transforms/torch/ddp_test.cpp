#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/adamw.h>

#include <crossrank/error.hpp>

#include "tests/transforms/torch/small_net.hpp"
#include "tests/transforms/training_job.hpp"

namespace libtorch_test {
namespace {

using testing::HasSubstr;
using xr::test::run_jobs;

Setting<xr::DDPTransformConfig> const ddp_settings[] = {
    {"default"},
    {"copied gradients, frozen", {.gradient_as_bucket_view = false}, {.frozen = true}},
    {"tied, static graph", {.static_graph = true}, {.tied = true}},
    {"unused", {.find_unused_parameters = true}, {.unused = true}},
    {"unused, copied gradients", {.find_unused_parameters = true, .gradient_as_bucket_view = false}, {.unused = true}},
    {"repeated", {}, {.repeats = true}},
    {"float", {}, {.dtype = at::kFloat, .buffer = true}, 2e-5},
};

TEST(TorchDDP, trains_as_one_process_on_the_whole_batch) {
  for (auto const& setting : ddp_settings) {
    SCOPED_TRACE(setting.name);
    auto const expected = trained_alone(setting.net);
    for (int const ranks : {1, 2, 3}) {
      run_jobs(ranks, 1, [&](xr::MeshCollective const& job) {
        auto mine = setting.net;
        mine.seed += job.rank();  // only the values of rank 0 count
        Net net(mine);
        auto model = xr::torch::ddp(net, job, setting.config);
        torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.02));
        train(model, optimizer, job.rank(), ranks, setting.net.dtype);
        EXPECT_LE(largest_difference(unique_parameters(*net), expected), setting.tolerance) << ranks << " ranks";
        job.close();
      });
    }
  }
}

/// The optimizers of crossrank and of LibTorch see the same gradients.
TEST(TorchDDP, trains_with_the_optimizer_of_crossrank) {
  auto const expected = trained_alone({});
  for (int const ranks : {1, 2}) {
    run_jobs(ranks, 1, [&](xr::MeshCollective const& job) {
      Net net;
      auto model = xr::torch::ddp(net, job);
      xr::AdamW optimizer(model.model(), {.lr = 0.02});
      auto const share = batch_rows / ranks;
      for (int step = 0; step < steps; ++step) {
        model.model()->zero_grad();  // drops the gradients of LibTorch's side too
        run_pass(model, step, job.rank() * share, (job.rank() + 1) * share);
        optimizer.step();
      }
      EXPECT_LE(largest_difference(net->parameters(), expected), rounding) << ranks << " ranks";
      job.close();
    });
  }
}

/// A program may put other gradients there, such as ones that it has clamped.
TEST(TorchDDP, trains_with_the_gradients_that_the_program_has_put_there) {
  for (int const ranks : {1, 2}) {
    run_jobs(ranks, 1, [&](xr::MeshCollective const& job) {
      Net net;
      auto model = xr::torch::ddp(net, job);
      xr::SGD optimizer(model.model(), {.lr = 1});
      run_pass(model, 0, 0, 3);
      auto const before = net->first->weight.detach().clone();
      for (auto const& parameter : model.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
      optimizer.step();
      EXPECT_LE(largest_difference({net->first->weight.detach() + 1}, {before}), rounding) << ranks << " ranks";
      job.close();
    });
  }
}

TEST(TorchDDP, reduces_buckets_during_the_backward_pass) {
  run_jobs(2, 1, [](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::ddp(net, job);
    auto& wrapped = dynamic_cast<xr::DDPWrappedModel&>(*model.model());
    run_pass(model, 0, 0, 3);
    // Rebuilt in the order in which autograd reported the gradients.
    auto const names = wrapped.buckets().front();
    EXPECT_EQ(names.front(), "scale") << testing::PrintToString(names);
    EXPECT_THAT(names.back(), testing::StartsWith("first."));
    EXPECT_EQ(names.size(), net->parameters().size());
    // Gradients are views into the bucket.
    auto const trained = model.model()->trained_tensors();
    for (auto const& one : trained) {
      EXPECT_EQ(static_cast<void const*>(one.grad.data()), net->named_parameters()[one.name].grad().data_ptr());
      EXPECT_EQ(one.grad.storage(), trained.front().grad.storage());
    }
    job.close();
  });
}

TEST(TorchDDP, accumulates_without_reduction) {
  NetImpl alone;
  run_pass(alone, 0, 0, batch_rows);
  run_jobs(2, 1, [&](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::ddp(net, job);
    for (int i = 0; i < 2; ++i) {
      auto const scope = model.accumulation_context(i == 1);
      auto const begin = job.rank() * 6 + i * 3;
      run_pass(model, 0, begin, begin + 3);
    }
    std::vector<at::Tensor> got;
    std::vector<at::Tensor> expected;
    for (auto const& parameter : net->parameters()) got.push_back(parameter.grad());
    for (auto const& parameter : alone.parameters()) expected.push_back(parameter.grad() * 2);
    EXPECT_LE(largest_difference(got, expected), rounding);
    job.close();
  });
}

TEST(TorchDDP, gives_gradients_to_its_inputs) {
  NetImpl alone;
  auto const expected = inputs(0, 0, 3).set_requires_grad(true);
  loss_of(alone.forward(expected * 2), 0, 3).backward();
  run_jobs(2, 1, [&](xr::MeshCollective const& job) {
    auto model = xr::torch::ddp(Net(), job);
    auto const input = inputs(0, 0, 3).set_requires_grad(true);
    loss_of(model.forward(input * 2), 0, 3).backward();
    EXPECT_LE(largest_difference({input.grad()}, {expected.grad()}), rounding);
    at::NoGradGuard const no_grad;
    EXPECT_FALSE(model.forward(inputs(0, 0, 3)).requires_grad());
    job.close();
  });
}

std::string error_of(std::function<void()> const& body) {
  try {
    body();
  } catch (std::exception const& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(TorchDDP, names_a_parameter_without_a_gradient) {
  run_jobs(2, 1, [](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::ddp(net, job);
    net->skip_last = job.rank() == 1;
    EXPECT_THAT(error_of([&] { run_pass(model, 0, 0, 3); }), HasSubstr("last.weight"));
  });
}

TEST(TorchDDP, ends_the_step_on_all_ranks_when_one_throws) {
  for (bool const in_backward : {false, true}) {
    run_jobs(3, 1, [&](xr::MeshCollective const& job) {
      Net net;
      auto model = xr::torch::ddp(net, job);
      run_pass(model, 0, 0, 3);
      net->blocks[1]->on_forward = [&] {
        if (job.rank() == 1) throw std::runtime_error("tensor on fire");
      };
      if (in_backward) net->blocks[1]->on_forward = {};
      if (in_backward && job.rank() == 1)
        net->blocks[0]->weight.register_hook([](at::Tensor const& grad) -> at::Tensor {
          throw std::runtime_error("tensor on fire");
          return grad;
        });
      EXPECT_THAT(error_of([&] { run_pass(model, 1, 0, 3); }), HasSubstr("tensor on fire")) << in_backward;
    });
  }
}

TEST(TorchDDP, wraps_errors_of_libtorch) {
  run_jobs(2, 1, [](xr::MeshCollective const& job) {
    auto model = xr::torch::ddp(Net(), job);
    auto const text = error_of([&] { static_cast<void>(model.forward(at::ones({2, 4}, at::kDouble))); });
    EXPECT_THAT(text, testing::AllOf(HasSubstr("LibTorch"), testing::Not(HasSubstr("frame #"))));
  });
}

TEST(TorchDDP, names_a_parameter_whose_tensor_was_replaced) {
  auto const names_it = testing::AllOf(HasSubstr("was replaced"), HasSubstr("scale"));
  for (bool const loads : {true, false}) {
    for (int const ranks : {1, 2}) {
      run_jobs(ranks, 1, [&](xr::MeshCollective const& job) {
        Net net;
        auto model = xr::torch::ddp(net, job);
        if (loads) {
          load_other_values(net);
        } else {
          net->to(at::kFloat);
        }
        EXPECT_THAT(error_of([&] { static_cast<void>(model.model()->trained_tensors()); }), names_it) << loads;
        EXPECT_THAT(error_of([&] { static_cast<void>(model.model()->sharded_state_dict()); }), names_it) << loads;
        if (ranks > 1) {
          EXPECT_THAT(error_of([&] { run_pass(model, 0, 0, 3); }), names_it) << loads;
        }
      });
    }
  }
}

/// A unit that shows which model runs it.
struct OpenUnit : xr::torch::Unit<BlockImpl> {
  OpenUnit() : Unit(5) {}
  using UnitBase::host;
};

/// A unit, and a parameter that is not contiguous if `is_refused`.
struct OpenNetImpl : torch::nn::Module {
  explicit OpenNetImpl(bool is_refused) {
    register_module("block", block);
    auto const whole = at::ones({3, 2});
    register_parameter("last", is_refused ? whole.t() : whole);
  }
  at::Tensor forward(at::Tensor const& x) { return block->forward(x); }
  std::shared_ptr<OpenUnit> block = std::make_shared<OpenUnit>();
};

TEST(TorchDDP, leaves_no_trace_in_a_module_that_it_refuses) {
  run_jobs(2, 1, [](xr::MeshCollective const& job) {
    auto const net = std::make_shared<OpenNetImpl>(true);
    EXPECT_THAT(error_of([&] { static_cast<void>(xr::torch::ddp(net, job)); }), HasSubstr("not contiguous"));
    EXPECT_EQ(net->block->host(), nullptr);
    job.close();
  });
}

TEST(TorchFullyShard, keeps_the_units_of_a_module_that_another_model_had_before) {
  run_jobs(2, 2, [](xr::MeshCollective const& job) {
    auto const net = std::make_shared<OpenNetImpl>(false);
    xr::MeshCollective const flat(job.dp_world(), {.sharding_world_size = 1});
    auto model = xr::torch::ddp(net, flat, {.find_unused_parameters = true});
    auto* const before = net->block->host();
    model = xr::torch::fully_shard(net, job);
    EXPECT_NE(net->block->host(), nullptr);
    EXPECT_NE(net->block->host(), before);
    model.forward(at::ones({2, 5})).sum().backward();
    job.close();
  });
}

TEST(TorchDDP, notices_a_change_in_place_before_the_backward_pass) {
  for (bool const output : {false, true}) {
    SigmoidImpl alone;
    EXPECT_THAT(change_in_place(alone, output), HasSubstr("modified by an inplace operation"));
    run_jobs(2, 1, [&](xr::MeshCollective const& job) {
      auto model = xr::torch::ddp(std::make_shared<SigmoidImpl>(), job);
      EXPECT_THAT(change_in_place(model, output), HasSubstr("modified by an inplace operation")) << output;
    });
  }
}

TEST(TorchDDP, refuses_passes_that_would_not_be_reduced) {
  run_jobs(2, 1, [](xr::MeshCollective const& job) {
    Net net;
    auto model = xr::torch::ddp(net, job);
    EXPECT_THAT(error_of([&] { run_pass(*net, 0, 0, 3); }), HasSubstr("outside its distributed model"));
    auto const loss = loss_of(model.forward(inputs(0, 0, 3)), 0, 3);
    loss.backward({}, true);
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("has had its backward pass"));
  });
}

}  // namespace
}  // namespace libtorch_test
