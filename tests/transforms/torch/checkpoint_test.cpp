#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/checkpoint.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/transforms/torch/small_net.hpp"
#include "tests/transforms/training_job.hpp"

namespace libtorch_test {
namespace {

namespace fs = std::filesystem;
using xr::test::run_jobs;

/// The ranks of a job, and whether they shard.
struct JobShape {
  int ranks = 1;
  bool sharded = false;
};

xr::torch::DistributedModule<NetImpl> distributed_net(xr::MeshCollective const& job, JobShape const& shape,
                                                      NetOptions const& options) {
  if (shape.sharded) return xr::torch::fully_shard(Net(options), job, {.reshard_after_forward = true});
  return xr::torch::ddp(Net(options), job, {.find_unused_parameters = true});
}

/// Trains from the steps that the optimizer has had to `last`.
void train_to(int last, xr::torch::DistributedModule<NetImpl>& model, xr::Optimizer& optimizer, int rank, int ranks) {
  auto const share = batch_rows / ranks;
  for (auto step = static_cast<int>(optimizer.steps()); step < last; ++step) {
    model.zero_grad();
    run_pass(model, step, rank * share, (rank + 1) * share);
    optimizer.step();
  }
}

/// A training that is saved and continues with other ranks or the other transform ends where an undisturbed one ends.
TEST(TorchCheckpoint, continues_with_any_number_of_ranks) {
  NetOptions const options{.tied = true, .unused = true, .frozen = true, .buffer = true};
  auto const expected = trained_alone(options);
  xr::test::TemporaryDirectory const folder;
  for (JobShape const from : {JobShape{2, true}, {3, false}, {1, false}}) {
    auto const path = folder.path() / ("from" + std::to_string(from.ranks));
    run_jobs(from.ranks, from.sharded ? from.ranks : 1, [&](xr::MeshCollective const& job) {
      auto model = distributed_net(job, from, options);
      xr::AdamW optimizer(model.model(), {.lr = 0.02});
      train_to(steps / 2, model, optimizer, job.rank(), from.ranks);
      xr::save_checkpoint(job.dp_world(), *model.model(), path, {.optimizer = &optimizer});
      job.close();
    });
    for (JobShape const to : {JobShape{1, false}, {2, false}, {3, true}}) {
      run_jobs(to.ranks, to.sharded ? to.ranks : 1, [&](xr::MeshCollective const& job) {
        auto other = options;
        other.seed = 5;  // the checkpoint has all values
        auto model = distributed_net(job, to, other);
        xr::AdamW optimizer(model.model(), {.lr = 0.02});
        xr::load_checkpoint(job.dp_world(), *model.model(), path, {.optimizer = &optimizer});
        EXPECT_EQ(optimizer.steps(), steps / 2);
        train_to(steps, model, optimizer, job.rank(), to.ranks);
        EXPECT_LE(largest_difference(whole(model), expected), rounding) << from.ranks << " to " << to.ranks;
        EXPECT_LE(largest_difference({model.module()->mean}, {NetImpl(options).mean}), 0);
        job.close();
      });
    }
  }
}

TEST(TorchCheckpoint, names_a_tensor_that_does_not_fit) {
  xr::test::TemporaryDirectory const folder;
  run_jobs(2, 2, [&](xr::MeshCollective const& job) {
    auto const model = xr::torch::fully_shard(Net(), job);
    xr::save_checkpoint(job.dp_world(), *model.model(), folder.path() / "model");
    auto const other = xr::torch::fully_shard(Net(NetOptions{.unused = true}), job);
    try {
      xr::load_checkpoint(job.dp_world(), *other.model(), folder.path() / "model");
      ADD_FAILURE() << "loaded";
    } catch (xr::FormatError const& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("unused"));
    }
    job.close();
  });
}

}  // namespace
}  // namespace libtorch_test
