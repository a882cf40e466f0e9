// Trains a network of LibTorch alone, replicated on 2 ranks and sharded over 3, and goes on from a checkpoint.
// Usage: train_libtorch OUT
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <crossrank/crossrank.hpp>
#include <crossrank/torch.hpp>
#include <crossrank/transforms/checkpoint.hpp>
#include <torch/nn/modules/linear.h>

namespace {

namespace fs = std::filesystem;
namespace xr = crossrank;

constexpr int steps = 60;
constexpr std::int64_t batch = 48;  // rows, of all ranks

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width) : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(at::Tensor const& x) { return x + at::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (auto const* name : {"block0", "block1", "block2"})
      blocks.push_back(register_module(name, std::make_shared<xr::torch::Unit<BlockImpl>>(16)));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto y = first->forward(x);
    for (auto const& block : blocks) y = block->forward(y);
    return last->forward(y);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 16));
  std::vector<std::shared_ptr<xr::torch::Unit<BlockImpl>>> blocks;
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 1));
};
TORCH_MODULE(Net);

/// How one job trains.
struct Plan {
  std::string name;
  int ranks = 1;
  bool sharded = false;
  int last_step = steps;
  fs::path resume_from{};
  fs::path save_to{};
};

/// Sets the same values in each program, so that the jobs can be compared.
void set_values(torch::nn::Module& module) {
  at::NoGradGuard const no_grad;
  double seed = 0;
  for (auto& parameter : module.parameters()) {
    auto const angles = at::arange(parameter.numel(), at::kFloat) * 1.7 + (seed += 0.9);
    parameter.copy_(at::sin(angles).reshape(parameter.sizes()) * 0.3);
  }
}

/// Returns rows of a batch: points, and the function to learn.
std::pair<at::Tensor, at::Tensor> rows(int step, std::int64_t begin, std::int64_t end) {
  auto const numbers = at::arange(begin * 2, end * 2, at::kFloat) * 0.37 + 0.11 * step;
  auto const x = at::sin(numbers * numbers).reshape({end - begin, 2});
  return {x, (x.select(1, 0) * x.select(1, 1)).unsqueeze(1)};
}

/// Trains as one rank of a job. Returns the loss of the last step, the mean over all ranks.
double train_rank(xr::MeshCollective const& job, Plan const& plan) {
  Net net;
  set_values(*net);
  auto model =
      plan.sharded ? xr::torch::fully_shard(net, job, {.reshard_after_forward = true}) : xr::torch::ddp(net, job);
  xr::AdamW optimizer(model.model(), {.lr = 0.01});
  if (!plan.resume_from.empty())
    xr::load_checkpoint(job.dp_world(), *model.model(), plan.resume_from, {.optimizer = &optimizer});

  double last = 0;
  auto const share = batch / job.world_size();
  for (auto step = static_cast<int>(optimizer.steps()); step < plan.last_step; ++step) {
    auto const [x, y] = rows(step, job.rank() * share, (job.rank() + 1) * share);
    model.zero_grad();
    auto const loss = at::mse_loss(model.forward(x), y);
    loss.backward();  // the gradients are reduced when it returns
    optimizer.step();
    last = job.dp_world().all_reduce_value(loss.item<double>(), xr::ReduceOp::avg);
  }

  if (!plan.save_to.empty()) {
    xr::save_checkpoint(job.dp_world(), *model.model(), plan.save_to, {.optimizer = &optimizer, .force = true});
  }
  return last;
}

/// Trains with a thread for each rank. An error ends the program.
double run(Plan const& plan) {
  double loss = 0;
  auto const work = [&](int rank) {
    try {
      at::set_num_threads(1);  // each rank is a thread already
      xr::MeshCollective const job(xr::connect({.rank = rank,
                                                .world_size = plan.ranks,
                                                .rank_kind = xr::RankKind::thread,
                                                .progress = xr::ProgressMode::thread}),
                                   {.sharding_world_size = plan.sharded ? plan.ranks : 1});
      auto const mine = train_rank(job, plan);
      if (rank == 0) loss = mine;
      job.close();
    } catch (std::exception const& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      std::_Exit(1);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.ranks; ++rank) threads.emplace_back(work, rank);
  for (auto& thread : threads) thread.join();
  std::printf("%-33s step %d, loss %.5f\n", plan.name.c_str(), plan.last_step, loss);
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_libtorch OUT\n");
    return 2;
  }
  fs::path const half = fs::path(argv[1]) / "half";
  auto const alone = run({.name = "1 rank"});
  double largest = std::abs(run({.name = "ddp, 2 ranks", .ranks = 2}) - alone);
  run({.name = "fully_shard, 3 ranks, first half",
       .ranks = 3,
       .sharded = true,
       .last_step = steps / 2,
       .save_to = half});
  auto const resumed = run({.name = "resumed with ddp, 2 ranks", .ranks = 2, .resume_from = half});
  largest = std::max(largest, std::abs(resumed - alone));
  std::printf("the losses are %s\n", largest < 1e-4 ? "equal" : "different");
  return largest < 1e-4 ? 0 : 1;
}
