#include "workspace/checkpoint/rules/expert_stack.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/core/at_rank.hpp"
#include "tests/checkpoint/support/numbered.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/checkpoint/support/shard_samples.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"

namespace crossrank::checkpoint::expert_stack_test {
namespace {

using test::numbered;
using testing::HasSubstr;

constexpr char const* fused = "model.layers.0.mlp.experts.gate_up_proj";
constexpr char const* down = "model.layers.0.mlp.experts.down_proj";

Json config(int experts) {
  return {{"model_type", "qwen3_moe"}, {"hidden_size", 6},           {"num_attention_heads", 2},
          {"num_key_value_heads", 2},  {"moe_intermediate_size", 8}, {"num_experts", experts}};
}

MergeRule rule_of(SampleSet& samples, char const* name, int ep) {
  return RuleSet::make(samples.set()).rule_for(name, samples.shards(name, 0, ep));
}

TEST(ExpertStack, is_concatenated_in_rank_order) {
  SampleSet samples(2, config(6), 1, 2);
  samples.add(fused, Dtype::bf16, {2, 8, 6}, 0, 0).add(fused, Dtype::bf16, {4, 8, 6}, 0, 1);
  for (int const ep : {0, 1}) {
    auto const rule = rule_of(samples, fused, ep);
    EXPECT_EQ(rule.ep_axis, 0);
    EXPECT_EQ(concatenation_of(rule).axis, 1);
  }
}

TEST(ExpertStack, is_replicated_when_every_rank_holds_all_experts) {
  SampleSet samples(2, config(4), 1, 2);
  samples.add(down, Dtype::bf16, {4, 6, 4}, 0, 0).add(down, Dtype::bf16, {4, 6, 4}, 0, 1);
  EXPECT_EQ(rule_of(samples, down, 1).ep_axis, -1);
}

TEST(ExpertStack, needs_the_number_of_experts_in_the_config) {
  auto silent = config(4);
  silent.erase("num_experts");
  SampleSet samples(2, silent, 1, 2);
  samples.add(down, Dtype::bf16, {2, 6, 4}, 0, 0).add(down, Dtype::bf16, {2, 6, 4}, 0, 1);
  try {
    (void)rule_of(samples, down, 0);
    FAIL();
  } catch (FormatError const& e) {
    EXPECT_EQ(e.info().resource, down);
    EXPECT_THAT(e.info().hint, HasSubstr("\"num_local_experts\": 4"));
  }
}

TEST(ExpertStack, rejects_a_number_that_the_config_contradicts) {
  SampleSet samples(1, config(5), 1, 2);
  samples.add(down, Dtype::bf16, {2, 6, 8}, 0, 0).add(down, Dtype::bf16, {2, 6, 8}, 0, 1);
  EXPECT_THROW((void)rule_of(samples, down, 0), FormatError);
}

TEST(ExpertStack, merges_back_from_two_by_two_ranks) {
  test::TemporaryDirectory const folder;
  auto const shards = folder.path() / "shards";
  std::filesystem::create_directory(shards);
  std::ofstream(shards / "config.json") << config(3);
  auto const whole_fused = numbered({3, 16, 6});  // 8 gates, 8 ups
  auto const whole_down = numbered({3, 6, 8});
  for (int const tp : {0, 1}) {
    for (int const ep : {0, 1}) {
      auto const of_rank = [&](Tensor const& whole) {
        return slice(whole, {.dim = 0}, ep == 0 ? 0 : 1, ep == 0 ? 1 : 2);
      };
      auto const mine = of_rank(whole_fused);
      std::vector<Tensor> const halves{slice(mine, {.dim = 1}, tp * 4, 4), slice(mine, {.dim = 1}, 8 + tp * 4, 4)};
      StateDict weights;
      weights.insert_or_assign(fused, concat(halves, {.dim = 1}));
      weights.insert_or_assign(down, slice(of_rank(whole_down), {.dim = 2}, tp * 4, 4));
      weights.insert_or_assign("model.norm.weight", numbered({6}));
      save_safetensors(shards / ("tp" + std::to_string(tp) + "_ep" + std::to_string(ep) + ".safetensors"), weights);
    }
  }
  auto const world = connect({.backend = "fake"});

  (void)consolidate(world, MergePlan::make(world, shards), folder.path() / "out");

  auto const merged = load_safetensors(folder.path() / "out" / "model.safetensors");
  EXPECT_EQ(merged.size(), 3U);
  EXPECT_EQ(merged.at(fused).shape(), whole_fused.shape());
  EXPECT_TRUE(std::ranges::equal(merged.at(fused).bytes(), whole_fused.bytes()));
  EXPECT_TRUE(std::ranges::equal(merged.at(down).bytes(), whole_down.bytes()));
}

/// TensorRT-LLM spreads experts over tensor-parallel ranks in groups, and splits each group.
TEST(ExpertGroups, among_tensor_parallel_ranks_are_split_and_merged) {
  test::TemporaryDirectory const folder;
  auto const model = folder.path() / "model";
  std::filesystem::create_directory(model);
  std::ofstream(model / "config.json") << Json{{"hidden_size", 6},
                                               {"intermediate_size", 8},
                                               {"moe", {{"num_experts", 4}}},
                                               {"mapping", {{"world_size", 1}, {"tp_size", 1}, {"pp_size", 1}}}};
  std::string const fc = "transformer.layers.0.mlp.fc.weight";
  std::string const proj = "transformer.layers.0.mlp.proj.weight";
  std::string const router = "transformer.layers.0.mlp.router.weight";
  StateDict const weights{{fc, numbered({4, 16, 6})}, {proj, numbered({4, 6, 8})}, {router, numbered({4, 6})}};
  save_safetensors(model / "model.safetensors", weights);
  auto const world = connect({.backend = "fake"});

  (void)split(world, MergePlan::make(world, model), folder.path() / "sharded", {.tp = 4, .moe_ep = 2});
  (void)consolidate(world, MergePlan::make(world, folder.path() / "sharded"), folder.path() / "again");

  for (int rank = 0; rank < 4; ++rank) {
    auto const shard = load_safetensors(folder.path() / "sharded" / ("rank" + std::to_string(rank) + ".safetensors"));
    // Rank 1 has the first half of the second group, rank 2 the second half of the first group.
    auto const experts = slice(weights.at(proj), {.dim = 0}, rank % 2 * 2, 2);
    auto const expected = slice(experts, {.dim = 2}, rank / 2 * 4, 4);
    EXPECT_TRUE(std::ranges::equal(shard.at(proj).bytes(), expected.bytes())) << rank;
    EXPECT_EQ(shard.at(fc).shape(), Shape({2, 8, 6}));
    EXPECT_EQ(shard.at(router).shape(), Shape({4, 6}));
  }
  auto const merged = load_safetensors(folder.path() / "again" / "model.safetensors");
  for (auto const& [name, tensor] : weights) {
    EXPECT_EQ(merged.at(name).shape(), tensor.shape()) << name;
    EXPECT_TRUE(std::ranges::equal(merged.at(name).bytes(), tensor.bytes())) << name;
  }
  std::ifstream in(folder.path() / "again" / "config.json");
  EXPECT_EQ(Json::parse(in).at("mapping").at("moe_ep_size"), 1);
  EXPECT_THROW((void)split(world, MergePlan::make(world, model), folder.path() / "odd", {.tp = 6, .moe_ep = 3}),
               UsageError);
}

/// Only shards need the mapping, so merging removes it from a config that had none.
TEST(ExpertGroups, remove_the_mapping_from_a_config_that_had_none) {
  test::TemporaryDirectory const folder;
  auto const model = folder.path() / "model";
  std::filesystem::create_directory(model);
  std::ofstream(model / "config.json") << config(4);
  StateDict const weights{{fused, numbered({4, 16, 6})}, {down, numbered({4, 6, 8})}};
  save_safetensors(model / "model.safetensors", weights);
  auto const world = connect({.backend = "fake"});

  (void)split(world, MergePlan::make(world, model), folder.path() / "sharded", {.tp = 4, .moe_ep = 2});
  (void)consolidate(world, MergePlan::make(world, folder.path() / "sharded"), folder.path() / "again");

  std::ifstream sharded(folder.path() / "sharded" / "config.json");
  EXPECT_TRUE(Json::parse(sharded).contains("mapping"));
  std::ifstream again(folder.path() / "again" / "config.json");
  EXPECT_EQ(Json::parse(again), config(4));
}

/// If both sides of a stack are as wide as the model, the other stack of the experts shows the order of dimensions.
TEST(ExpertStack, infers_the_order_of_a_square_stack_from_the_other_stack) {
  auto square = config(4);
  square["model_type"] = "aria_text";
  square["moe_intermediate_size"] = 12;  // 6 on each of two ranks, the hidden size
  for (bool const transposed : {true, false}) {
    SampleSet samples(2, square);
    samples.add(fused, Dtype::bf16, transposed ? Shape{4, 6, 12} : Shape{4, 12, 6});
    samples.add(down, Dtype::bf16, {4, 6, 6});
    EXPECT_EQ(concatenation_of(rule_of(samples, down, 0)).axis, transposed ? 1 : 2);
    EXPECT_EQ(concatenation_of(rule_of(samples, fused, 0)).axis, transposed ? 2 : 1);
  }
  square["moe_intermediate_size"] = 6;  // gate and up of one rank together: 6
  SampleSet samples(2, square);
  samples.add(fused, Dtype::bf16, {4, 6, 6}).add(down, Dtype::bf16, {4, 3, 6});
  EXPECT_EQ(concatenation_of(rule_of(samples, fused, 0)).axis, 2);
}

TEST(ExpertStack, has_the_computed_values_of_all_expert_ranks) {
  SampleSet samples(1, Json::object(), 1, 2);
  samples.add("scale", Dtype::u8, {2}, 0, 0).add("scale", Dtype::u8, {2}, 0, 1);
  std::uint8_t calls = 0;
  auto const rule_for = [&](auto const&) {
    return MergeRule{.kind = UsePrecomputed{{2}, std::vector<std::byte>(2, std::byte{++calls})}, .ep_axis = 0};
  };
  MergedSource const merged(std::make_shared<MergeLayout const>(lay_out_merge(samples.set(), rule_for)));
  WholeTensor const expected{"scale", Dtype::u8, {4}, {std::byte{1}, std::byte{1}, std::byte{2}, std::byte{2}}};
  EXPECT_EQ(engine_differs({expected}, merged), "");
}

/// Two groups of experts on two ranks, and the same rule for the tensor in each group.
MergeLayout lay_out_groups(MergeRule const& rule_of_group) {
  SampleSet samples(2);
  samples.add("fused", Dtype::u8, {4});
  for (int rank = 0; rank < 2; ++rank) at_rank(samples.set().places, rank).moe = rank;
  return lay_out_merge(samples.set(), [&](auto const& group) {
    return group.shards.size() == 2 ? MergeRule{.kind = MergeExpertGroups{2}} : rule_of_group;
  });
}

TEST(ExpertGroupsAmongRanks, list_the_tensors_that_they_leave_out) {
  auto const layout = lay_out_groups({.kind = LeaveOut{}, .reason = "not needed"});
  EXPECT_TRUE(layout.tensors.empty());
  ASSERT_EQ(layout.dropped.size(), 2U);
  EXPECT_EQ(layout.dropped.back().name, "fused");
  EXPECT_EQ(layout.dropped.back().reason, "not needed");
}

TEST(ExpertGroupsAmongRanks, may_separate_parts) {
  auto const part = [](int number, std::string name) {
    return MergeRule{
        .kind = Concatenate{.parts = {1, 1}, .only_part = number}, .output_name = std::move(name), .ep_axis = 0};
  };
  auto const layout = lay_out_groups({.kind = SeparateParts{{part(0, "gate"), part(1, "up")}}});
  EXPECT_EQ(names_of(layout), (std::vector<std::string>{"gate", "up"}));
  for (auto const& tensor : layout.tensors) EXPECT_EQ(tensor.shape, (Shape{4})) << tensor.name;
}

}  // namespace
}  // namespace crossrank::checkpoint::expert_stack_test
