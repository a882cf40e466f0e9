// Groups of experts among the tensor-parallel ranks.
#include "workspace/checkpoint/discovery/grid/expert_groups.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "tests/checkpoint/support/numbered.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::checkpoint::expert_groups_test {
namespace {

namespace fs = std::filesystem;
using test::numbered;

std::string const layer = "model.layers.0.";

/// Returns a config with hidden size 8, 4 heads and 4 experts of width 6.
Json config() {
  return {{"model_type", "qwen3_moe"}, {"hidden_size", 8},           {"num_attention_heads", 4}, {"num_experts", 4},
          {"num_key_value_heads", 4},  {"moe_intermediate_size", 6}, {"intermediate_size", 12},  {"vocab_size", 16}};
}

std::string expert(int number, char const* name) {
  return layer + "mlp.experts." + std::to_string(number) + "." + name + ".weight";
}

class ExpertParallel : public testing::Test {
 protected:
  ExpertParallel() {
    model_.insert_or_assign(layer + "self_attn.q_proj.weight", numbered({8, 8}, 1000));
    model_.insert_or_assign(layer + "self_attn.o_proj.weight", numbered({8, 8}, 2000));
    model_.insert_or_assign(layer + "mlp.gate.weight", numbered({4, 8}, 3000));
  }
  void add_experts() {
    for (int e = 0; e < 4; ++e) {
      model_.insert_or_assign(expert(e, "up_proj"), numbered({6, 8}, 1000.0F * static_cast<float>(10 + e)));
      model_.insert_or_assign(expert(e, "down_proj"), numbered({8, 6}, 1000.0F * static_cast<float>(20 + e)));
    }
  }
  /// Adds the shards of all layers except the experts.
  [[nodiscard]] StateDict dense(int rank, int ranks) const {
    StateDict shard;
    auto const width = 8 / ranks;
    shard.insert_or_assign(layer + "self_attn.q_proj.weight",
                           slice(model_.at(layer + "self_attn.q_proj.weight"), {.dim = 0}, rank * width, width));
    shard.insert_or_assign(layer + "self_attn.o_proj.weight",
                           slice(model_.at(layer + "self_attn.o_proj.weight"), {.dim = 1}, rank * width, width));
    shard.insert_or_assign(layer + "mlp.gate.weight", model_.at(layer + "mlp.gate.weight"));
    return shard;
  }
  /// Adds piece `part` of `parts` of the model's expert `from`, as expert `to` of the shard.
  void take_expert(StateDict& shard, int from, int to, int part = 0, int parts = 1) const {
    auto const width = 6 / parts;
    shard.insert_or_assign(expert(to, "up_proj"),
                           slice(model_.at(expert(from, "up_proj")), {.dim = 0}, part * width, width));
    shard.insert_or_assign(expert(to, "down_proj"),
                           slice(model_.at(expert(from, "down_proj")), {.dim = 1}, part * width, width));
  }
  void save(std::string const& file, StateDict const& shard) {
    auto const path = folder_.path() / "shards" / file;
    fs::create_directories(path.parent_path());
    save_safetensors(path, shard);
    std::ofstream(folder_.path() / "shards" / "config.json") << config();
  }
  void expect_model(PlanOptions const& options = {}) {
    auto const world = connect({.backend = "fake"});
    (void)consolidate(world, MergePlan::make(world, folder_.path() / "shards", options), folder_.path() / "out");
    auto const merged = load_safetensors(folder_.path() / "out" / "model.safetensors");
    EXPECT_EQ(merged.size(), model_.size());
    for (auto const& [name, tensor] : model_) {
      EXPECT_EQ(merged.at(name).shape(), tensor.shape()) << name;
      EXPECT_TRUE(std::ranges::equal(merged.at(name).bytes(), tensor.bytes())) << name;
    }
    fs::remove_all(folder_.path() / "out");
  }

  test::TemporaryDirectory folder_{};
  StateDict model_{};
};

TEST_F(ExpertParallel, merges_experts_that_are_whole_on_one_rank) {
  add_experts();
  for (bool const local : {false, true}) {
    fs::remove_all(folder_.path() / "shards");
    for (int rank = 0; rank < 2; ++rank) {
      auto shard = dense(rank, 2);
      for (int e = 0; e < 2; ++e) take_expert(shard, 2 * rank + e, local ? e : 2 * rank + e);
      save("rank" + std::to_string(rank) + ".safetensors", shard);
    }
    expect_model();
    expect_model({.tp = 2, .moe_ep = 2});
  }
}

TEST_F(ExpertParallel, merges_experts_sharded_over_a_group) {
  add_experts();
  for (int rank = 0; rank < 4; ++rank) {
    auto shard = dense(rank, 4);
    for (int e = 0; e < 2; ++e) take_expert(shard, 2 * (rank % 2) + e, 2 * (rank % 2) + e, rank / 2, 2);
    save("rank" + std::to_string(rank) + ".safetensors", shard);
  }
  expect_model();
}

TEST_F(ExpertParallel, concatenates_stacks_of_experts) {
  auto const up = layer + "mlp.experts.gate_up_proj";
  auto const down = layer + "mlp.experts.down_proj";
  model_.insert_or_assign(up, numbered({4, 12, 8}, 4000));
  model_.insert_or_assign(down, numbered({4, 8, 6}, 5000));
  for (int rank = 0; rank < 2; ++rank) {
    auto shard = dense(rank, 2);
    for (auto const& name : {up, down}) shard.insert_or_assign(name, slice(model_.at(name), {.dim = 0}, 2 * rank, 2));
    save("rank" + std::to_string(rank) + ".safetensors", shard);
  }
  expect_model();
  expect_model({.moe_ep = 2});
}

/// vLLM's names for stacks become the names of the model.
TEST_F(ExpertParallel, renames_stacks_with_names_of_vllm) {
  auto const up = layer + "mlp.experts.gate_up_proj";
  auto const down = layer + "mlp.experts.down_proj";
  model_.insert_or_assign(up, numbered({4, 12, 8}, 4000));
  model_.insert_or_assign(down, numbered({4, 8, 6}, 5000));
  for (int const ranks : {1, 2}) {
    fs::remove_all(folder_.path() / "shards");
    for (int rank = 0; rank < ranks; ++rank) {
      auto shard = dense(rank, ranks);
      shard.insert_or_assign(layer + "mlp.experts.w13_weight",
                             slice(model_.at(up), {.dim = 0}, 4 / ranks * rank, 4 / ranks));
      shard.insert_or_assign(layer + "mlp.experts.w2_weight",
                             slice(model_.at(down), {.dim = 0}, 4 / ranks * rank, 4 / ranks));
      save("model-rank-" + std::to_string(rank) + "-part-0.safetensors", shard);
    }
    expect_model();
  }
}

/// With Megatron's parallel folding, ranks have a tensor-parallel and an expert-parallel number, but not every pair
/// exists.
TEST_F(ExpertParallel, merges_experts_of_folded_ranks) {
  add_experts();
  struct Folding {
    int tp;
    int ep;
    std::vector<std::pair<int, int>> ranks;  ///< tensor-parallel, expert-parallel
    int parts;                               ///< pieces of an expert
  };
  for (auto const& folding :
       {Folding{2, 2, {{0, 0}, {1, 1}}, 1}, Folding{2, 4, {{0, 0}, {1, 1}, {0, 2}, {1, 3}}, 1},
        Folding{4, 2, {{0, 0}, {1, 1}, {2, 0}, {3, 1}}, 1}, Folding{4, 2, {{0, 0}, {1, 0}, {2, 1}, {3, 1}}, 2}}) {
    fs::remove_all(folder_.path() / "shards");
    for (auto const& [tp, ep] : folding.ranks) {
      auto shard = dense(tp, folding.tp);
      auto const own = 4 / folding.ep;
      for (int e = 0; e < own; ++e) take_expert(shard, ep * own + e, e, folding.parts == 2 ? tp % 2 : 0, folding.parts);
      save("mp_rank_0" + std::to_string(tp) + "_000_00" + std::to_string(ep) + "/model.safetensors", shard);
    }
    SCOPED_TRACE(std::to_string(folding.tp) + " x " + std::to_string(folding.ep));
    expect_model();
  }
}

TEST(FoldedExperts, are_not_assumed_when_a_shard_is_missing) {
  ShardGrid grid{.tp = 2, .ep = 2};
  grid.places = {{.tp = 0, .ep = 0}, {.tp = 1, .ep = 0}, {.tp = 0, .ep = 1}};
  EXPECT_FALSE(fold_experts(grid));
  grid.places.push_back({.tp = 1, .ep = 1});
  EXPECT_FALSE(fold_experts(grid));  // all pairs exist
}

}  // namespace
}  // namespace crossrank::checkpoint::expert_groups_test
