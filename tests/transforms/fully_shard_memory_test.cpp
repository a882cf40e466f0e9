// How much memory a sharded model needs, and what it keeps in flight within that.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "lib/tensor/heap_storage.hpp"
#include "tests/transforms/tiny_mlp.hpp"
#include "tests/transforms/training_job.hpp"
#include "transforms/fully_shard/backward_budget.hpp"

namespace crossrank::test {
namespace {

using transforms::BackwardBudget;

/// Counts the gathered bytes when a unit begins.
struct GatheredBytes final : TrainingObserver {
  void before_unit(std::size_t unit, Pass pass) override {
    if (pass == Pass::backward) in_backward[unit] = model->memory().gathered;
  }
  void after_unit(std::size_t, Pass) override {}
  void gradient_ready(Parameter&) override {}
  FullyShardedModel* model = nullptr;
  std::map<std::size_t, std::size_t> in_backward{};
};

std::size_t bytes_of_gradients(TrainableModel& model) {
  std::size_t bytes = 0;
  for (auto const& tensor : model.trained_tensors()) bytes += tensor.grad.storage()->size_bytes();
  return bytes;
}

TEST(FullyShardMemory, is_two_units_besides_the_gradients_of_the_shards) {
  for (int const ranks : {2, 4}) {
    run_jobs(ranks, ranks, [&](MeshCollective const& job) {
      TinyOptions const options{.widths = {3, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 2}};
      auto const model =
          FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>(options));
      auto& sharded = dynamic_cast<FullyShardedModel&>(*model);
      run_pass(*model, 0, 0, 3);
      auto const max = 2 * sharded.memory().largest_unit;
      EXPECT_LE(sharded.memory().peak, max + bytes_of_gradients(*model));
      run_pass(*model, 1, 0, 3);  // adds to gradients that are there already
      EXPECT_LE(sharded.memory().peak, max + bytes_of_gradients(*model));
      EXPECT_EQ(sharded.memory().gradients, bytes_of_gradients(*model));
      model->zero_grad();
      EXPECT_EQ(sharded.memory().gradients, 0U);
      job.close();
    });
  }
}

TEST(FullyShardMemory, does_not_grow_when_the_backward_pass_runs_units_forward_again) {
  std::map<bool, std::size_t> peak;
  std::map<bool, std::vector<double>> values;
  for (bool const recomputes : {false, true}) {
    run_jobs(2, 2, [&](MeshCollective const& job) {
      TinyOptions const options{.widths = {3, 64, 64, 64, 64, 64, 64, 64, 64, 2}, .recomputes = recomputes};
      auto const model =
          FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>(options));
      SGD optimizer(model, {.lr = 0.1});
      train(*model, optimizer, 2, job.rank(), 2);
      if (job.rank() == 0) peak[recomputes] = dynamic_cast<FullyShardedModel&>(*model).memory().peak;
      for (auto const& shard : model->sharded_state_dict()) {
        auto const rows = reals_of(shard.value);
        if (job.rank() == 0) values[recomputes].insert(values[recomputes].end(), rows.begin(), rows.end());
      }
      job.close();
    });
  }
  EXPECT_LE(peak.at(true), peak.at(false));
  EXPECT_EQ(values.at(true), values.at(false));
}

TEST(FullyShardMemory, fetches_the_next_unit_ahead_where_there_is_space) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    TinyOptions const options{.widths = {3, 64, 64, 64, 64, 64, 64, 64, 64, 2}};
    auto const model =
        FullyShardTransform({.reshard_after_forward = true}, job).apply(std::make_shared<TinyMlp>(options));
    GatheredBytes bytes;
    bytes.model = dynamic_cast<FullyShardedModel*>(model.get());
    model->observe(&bytes);
    run_pass(*model, 0, 0, 3);
    auto const unit = bytes.model->memory().largest_unit;
    EXPECT_EQ(bytes.in_backward.at(7), 2 * unit);
    EXPECT_EQ(bytes.in_backward.at(5), 2 * unit);
    job.close();
  });
}

TEST(FullyShardMemory, keeps_the_overlap_where_all_parameters_stay_gathered) {
  run_jobs(2, 2, [](MeshCollective const& job) {
    TinyOptions const options{.widths = {3, 64, 64, 64, 2}};
    auto const model = FullyShardTransform({}, job).apply(std::make_shared<TinyMlp>(options));
    run_pass(*model, 0, 0, 3);
    auto const memory = dynamic_cast<FullyShardedModel&>(*model).memory();
    EXPECT_GT(memory.peak_full_gradients, memory.largest_unit);
    job.close();
  });
}

TEST(BackwardBudget, is_what_the_largest_moment_of_the_pass_needs_anyway) {
  BackwardBudget budget;
  EXPECT_EQ(budget.left(1000), SIZE_MAX - 1000);
  // The last unit runs beside no gradients of shards, the first one beside those of all others.
  budget.limit({{.running = 20, .reduced = 5}, {.running = 20, .reduced = 5}, {.running = 24, .reduced = 6}}, 3);
  EXPECT_EQ(budget.left(0), 3 + 20 + 5 + 6U);
  EXPECT_EQ(budget.left(30), 4U);
  EXPECT_EQ(budget.left(40), 0U);
  budget.limit({{.running = 20, .reduced = 5, .has_gradients = true}, {.running = 90, .reduced = 5}}, 0);
  EXPECT_EQ(budget.left(0), 95U);
  budget.lift();
  EXPECT_EQ(budget.left(0), SIZE_MAX);
}

TEST(PageStorage, is_aligned_zeros_that_can_be_written) {
  for (std::size_t const bytes :
       {std::size_t{1}, std::size_t{4097}, std::size_t{2} << 20, (std::size_t{5} << 20) + 3}) {
    PageStorage pages(bytes);
    EXPECT_EQ(pages.size_bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.data()) % (bytes < (std::size_t{2} << 20) ? 4096 : 2 << 20), 0U);
    EXPECT_EQ(pages.data()[0], std::byte{0});
    EXPECT_EQ(pages.data()[bytes - 1], std::byte{0});
    pages.data()[bytes - 1] = std::byte{7};
    EXPECT_EQ(pages.data()[bytes - 1], std::byte{7});
  }
  EXPECT_EQ(PageStorage(0).data(), nullptr);
  EXPECT_THROW(PageStorage(SIZE_MAX), UnavailableError);
}

}  // namespace
}  // namespace crossrank::test
