#include "training.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <thread>

namespace train {
namespace {

constexpr int sequences = 8;  // in the batch of all ranks

/// Runs one step and returns the loss of this rank's part of the batch.
double step_once(xr::TrainableModel& model, xr::Optimizer& optimizer, Batch const& batch) {
  model.zero_grad();
  auto const logits = model.forward(std::span(&batch.tokens, 1)).front();
  auto const loss = cross_entropy(logits.as<float>(), batch.targets);
  auto const gradient = xr::Tensor::of(loss.gradient, logits.shape());
  model.backward(std::span(&gradient, 1));
  xr::clip_grad_norm(model, 1.0);
  optimizer.step();
  return loss.value;
}

/// Trains as one rank of a job.
std::vector<double> train_rank(xr::MeshCollective const& job, Plan const& plan, LlamaConfig const& config,
                               Text const& text, OnStep const& on_step) {
  auto const llama = std::make_shared<Llama>(config);
  auto const model = plan.sharded ? xr::FullyShardTransform({.reshard_after_forward = true}, job).apply(llama)
                                  : xr::DDPTransform({}, job).apply(llama);
  xr::AdamW optimizer(model, {.lr = 3e-3});
  if (!plan.resume_from.empty())
    xr::load_checkpoint(job.dp_world(), *model, plan.resume_from, {.optimizer = &optimizer});

  std::vector<double> losses;
  int const share = sequences / job.world_size();
  for (int step = static_cast<int>(optimizer.steps()); step < plan.steps; ++step) {
    auto const batch = text.batch(step, job.rank() * share, (job.rank() + 1) * share);
    auto const mine = step_once(*model, optimizer, batch);
    losses.push_back(job.dp_world().all_reduce_value(mine, xr::ReduceOp::avg));
    if (job.rank() == 0) on_step(step + 1, losses.back());
  }

  if (!plan.save_to.empty()) {
    xr::save_checkpoint(job.dp_world(), *model, plan.save_to,
                        {.optimizer = &optimizer, .config = config.json(), .format = plan.format, .force = true});
  }
  return losses;
}

}  // namespace

std::vector<double> run(Plan const& plan, LlamaConfig const& config, Text const& text, OnStep const& on_step) {
  std::vector<double> losses;
  auto const work = [&](int rank) {
    try {
      auto world = xr::connect({.rank = rank,
                                .world_size = plan.ranks,
                                .rank_kind = xr::RankKind::thread,
                                .progress = xr::ProgressMode::thread});  // gradients travel while backward computes
      xr::MeshCollective const job(world, {.sharding_world_size = plan.sharded ? plan.ranks : 1});
      auto mine = train_rank(job, plan, config, text, on_step);
      if (rank == 0) losses = std::move(mine);
      job.close();
    } catch (std::exception const& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      std::_Exit(1);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.ranks; ++rank) threads.emplace_back(work, rank);
  for (auto& thread : threads) thread.join();
  return losses;
}

}  // namespace train
