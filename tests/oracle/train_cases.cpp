// Trains each case of a file and saves its parameters and optimizer state, for the comparison with PyTorch.
// Usage: oracle_trainer CASES.json
//
// Case: name, ranks, sharding, transform ("ddp" or "fully_shard"), config, model, optimizer, microbatches, max_norm (0:
// no clipping), bf16_hook, skips_on_rank (-1: none), initial (checkpoint), data (safetensors), out (folder).
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <crossrank/safetensors.hpp>
#include <crossrank/transforms/checkpoint.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/transforms/tiny_mlp.hpp"

namespace {

namespace fs = std::filesystem;
namespace xr = crossrank;
using crossrank::test::TinyMlp;
using crossrank::test::TinyOptions;

xr::Dtype dtype_of(std::string const& name) {
  if (name == "float64") return xr::Dtype::f64;
  return name == "float32" ? xr::Dtype::f32 : xr::Dtype::bf16;
}

std::shared_ptr<TinyMlp> make_model(xr::Json const& model, int rank) {
  auto const dtype = dtype_of(model.at("dtype"));
  return std::make_shared<TinyMlp>(TinyOptions{.widths = model.at("widths"),
                                               .dtype = dtype,
                                               .bias_dtype = dtype,
                                               .tied = model.at("tied"),
                                               .unused = model.at("unused"),
                                               .frozen = true,
                                               .rounds = true,
                                               .seed = 1.0 + rank});  // the checkpoint replaces all values
}

std::unique_ptr<xr::Optimizer> make_optimizer(std::shared_ptr<xr::TrainableModel> const& model, xr::Json const& one) {
  if (one.at("name") == "SGD") {
    return std::make_unique<xr::SGD>(
        model,
        xr::SGDOptions{.lr = one.at("lr"), .momentum = one.at("momentum"), .weight_decay = one.at("weight_decay")});
  }
  return std::make_unique<xr::AdamW>(model,
                                     xr::AdamWOptions{.lr = one.at("lr"), .weight_decay = one.at("weight_decay")});
}

std::shared_ptr<xr::TrainableModel> wrap(xr::Json const& one, xr::MeshCollective const& job,
                                         std::shared_ptr<TinyMlp> const& tiny) {
  if (one.at("transform") == "fully_shard")
    return xr::FullyShardTransform(xr::fully_shard_config_from_json(one.at("config")), job).apply(tiny);
  auto model = xr::DDPTransform(xr::ddp_config_from_json(one.at("config")), job).apply(tiny);
  if (one.at("bf16_hook")) dynamic_cast<xr::DDPWrappedModel&>(*model).register_comm_hook(xr::bf16_compress_hook());
  return model;
}

xr::NoSync context(xr::TrainableModel& model, bool is_last) {
  if (auto* const ddp = dynamic_cast<xr::DDPWrappedModel*>(&model)) return ddp->accumulation_context(is_last);
  return dynamic_cast<xr::FullyShardedModel&>(model).accumulation_context(is_last);
}

/// Runs one microbatch, whose loss is a mean that counts one part in `parts`, and returns the loss.
double run_microbatch(xr::TrainableModel& model, xr::Tensor const& inputs, xr::Tensor const& targets, int parts) {
  auto const outputs = xr::test::reals_of(model.forward(std::span(&inputs, 1)).front());
  auto gradient = targets.clone();
  double loss = 0;
  auto const count = static_cast<double>(outputs.size()) * parts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    auto const distance = outputs[i] - targets.as<double>()[i];
    loss += distance * distance / count;
    gradient.as_mutable<double>()[i] = 2 * distance / count;
  }
  model.backward(std::span(&gradient, 1));
  return loss;
}

void train_rank(xr::Json const& one, xr::MeshCollective const& job) {
  auto const tiny = make_model(one.at("model"), job.rank());
  tiny->skip_last_bias = one.at("skips_on_rank") == job.rank();
  auto const model = wrap(one, job, tiny);
  xr::load_checkpoint(job.dp_world(), *model, one.at("initial").get<std::string>());
  auto const optimizer = make_optimizer(model, one.at("optimizer"));
  auto const data = xr::load_safetensors(one.at("data").get<std::string>());
  auto const& inputs = data.at("inputs");
  auto const& targets = data.at("targets");
  int const parts = one.at("microbatches");
  auto const rows = inputs.shape()[1] / job.world_size() / parts;
  double const max_norm = one.at("max_norm");
  auto losses = xr::Json::array();
  auto norms = xr::Json::array();
  for (std::int64_t step = 0; step < inputs.shape()[0]; ++step) {
    model->zero_grad();
    double loss = 0;
    for (int part = 0; part < parts; ++part) {
      auto const scope = context(*model, part + 1 == parts);
      auto const begin = (job.rank() * parts + part) * rows;
      auto const rows_of = [&](xr::Tensor const& all) {
        auto const whole = all.narrow(0, step, 1);
        return whole.reshape({whole.shape()[1], whole.shape()[2]}).narrow(0, begin, rows);
      };
      loss += run_microbatch(*model, rows_of(inputs), rows_of(targets), parts);
    }
    losses.push_back(job.dp_world().all_reduce_value(loss, xr::ReduceOp::avg));
    if (max_norm > 0) norms.push_back(xr::clip_grad_norm(*model, max_norm));
    optimizer->step();
  }
  xr::save_checkpoint(job.dp_world(), *model, one.at("out").get<std::string>(),
                      {.optimizer = optimizer.get(), .training_state = {{"losses", losses}, {"norms", norms}}});
}

/// Returns the error of a rank; empty: none.
std::string train_case(xr::Json const& one) {
  int const ranks = one.at("ranks");
  auto errors = crossrank::per_rank<std::string>(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto world = xr::connect({.rank = rank,
                                  .world_size = ranks,
                                  .rank_kind = xr::RankKind::thread,
                                  .progress = xr::ProgressMode::thread});
        xr::MeshCollective const job(world, {.sharding_world_size = one.at("sharding").get<int>()});
        train_rank(one, job);
        job.close();
      } catch (std::exception const& e) {
        crossrank::at_rank(errors, rank) = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto const& error : errors) {
    if (!error.empty()) return error;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CASES.json\n", argv[0]);
    return 2;
  }
  int status = 0;
  try {
    auto const cases = xr::Json::parse(std::ifstream(argv[1]));
    for (auto const& one : cases) {
      auto const error = train_case(one);
      if (error.empty()) continue;
      std::printf("%s: %s\n", one.at("name").get<std::string>().c_str(), error.c_str());
      status = 1;
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return status;
}
