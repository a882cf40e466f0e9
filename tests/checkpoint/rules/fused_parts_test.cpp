// Shards that the tests make themselves, independent of the splitter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::checkpoint {
namespace {

TEST(RuleParts, sharded_by_other_programs_are_merged) {
  // Gates and ups of ranks with different widths.
  std::mt19937 random(3);
  auto const fused = random_tensor("model.layers.0.mlp.gate_up_proj.weight", Dtype::bf16, {1024, 8}, random);
  auto phi = feed_forward_config();
  phi["model_type"] = "phi3";
  phi["hidden_size"] = 8;
  std::vector<WholeTensor> shards;
  SampleSet samples(3, phi);
  std::int64_t begin = 0;
  for (std::int64_t width : {100, 300, 112}) {
    shards.push_back(join({slice_of(fused, 0, begin, width), slice_of(fused, 0, 512 + begin, width)}, 0));
    samples.at(static_cast<int>(shards.size()) - 1).add(fused.name, fused.dtype, shards.back().shape);
    begin += width;
  }
  std::string problem;
  auto const rule = RuleSet::make(samples.set()).rule_for(fused.name, samples.shards(fused.name));
  EXPECT_EQ(merge_slowly(rule, shards, problem).bytes, fused.bytes) << rule.reason;
}

// One scale for the gates and one for the ups fits no output, and a merge must not line them up like outputs.
TEST(RuleParts, with_one_scale_each_are_refused) {
  std::string const layer = "model.layers.0.mlp.gate_up_proj.";
  SampleSet samples(2, {{"model_type", "phi3"}, {"hidden_size", 16}, {"intermediate_size", 32}});
  for (int rank = 0; rank < 2; ++rank) {
    samples.at(rank).add(layer + "weight", Dtype::f8_e4m3, {32, 16});
    samples.at(rank).add(layer + "weight_scale", Dtype::f32, {2});
  }
  auto const rule_set = RuleSet::make(samples.set());
  EXPECT_THROW((void)rule_set.rule_for(layer + "weight_scale", samples.shards(layer + "weight_scale")), FormatError);
}

/// Only the config says where the parts end. As one block, no program that shards the layer could read the shards.
TEST(RuleParts, of_unknown_widths_are_neither_split_nor_merged) {
  for (std::string const layer :
       {"decoder.layers.0.mlp.linear_fc1", "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1",
        "decoder.layers.0.mlp.shared_experts.linear_fc1", "transformer.encoder.layers.0.mlp.dense_h_to_4h",
        "transformer.encoder.layers.0.self_attention.query_key_value", "model.layers.0.self_attn.qkv_proj"}) {
    auto const name = layer + ".weight";
    SampleSet whole(1);
    whole.add(name, Dtype::bf16, {192, 64});
    SampleSet shards(2);
    shards.add(name, Dtype::bf16, {96, 64});
    auto const split = test::error_of<FormatError>(
        [&] { (void)RuleSet::make(whole.set()).split_for(name, *whole.shards(name).front(), 2); });
    auto const merge =
        test::error_of<FormatError>([&] { (void)RuleSet::make(shards.set()).rule_for(name, shards.shards(name)); });
    for (auto const& error : {split, merge}) {
      EXPECT_THAT(error.message, testing::HasSubstr("the widths of the parts of this fused layer are unknown"))
          << layer;
      EXPECT_THAT(error.hint, testing::HasSubstr("\"parts\":[")) << layer;
    }
  }
}

TEST(RuleParts, count_shared_heads_once_in_the_weight_shape) {
  std::mt19937 random(5);
  Json const phi = {
      {"model_type", "phi3"}, {"hidden_size", 64}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
  std::string const layer = "model.layers.0.self_attn.qkv_proj";
  std::vector<WholeTensor> tensors{random_tensor(layer + ".weight_packed", Dtype::i32, {128, 8}, random),
                                   random_tensor(layer + ".weight_scale", Dtype::bf16, {128, 2}, random),
                                   random_tensor(layer + ".weight_shape", Dtype::i64, {2}, random)};
  set_shape(tensors.back(), 128, 64);
  EXPECT_EQ(round_trip(tensors, phi, 4), "");
}

TEST(RuleParts, are_merged_when_ranks_share_heads) {
  // Two key/value heads on four ranks, as [q; k; v] per rank and in groups. Heads of 4, width 16.
  std::mt19937 random(4);
  Json const small = {
      {"model_type", "phi3"}, {"hidden_size", 16}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
  auto const q = random_tensor("q", Dtype::bf16, {16, 16}, random);
  auto const kv = random_tensor("kv", Dtype::bf16, {16, 16}, random);  // k0 k1 v0 v1
  for (bool const grouped : {false, true}) {
    std::string const name =
        grouped ? "decoder.layers.0.self_attention.linear_qkv.weight" : "model.layers.0.self_attn.qkv_proj.weight";
    auto const k = [&](int head) { return slice_of(kv, 0, head * 4, 4); };
    auto const v = [&](int head) { return slice_of(kv, 0, 8 + head * 4, 4); };
    std::vector<WholeTensor> shards;
    SampleSet samples(4, small);
    for (int rank = 0; rank < 4; ++rank) {
      shards.push_back(join({slice_of(q, 0, rank * 4, 4), k(rank / 2), v(rank / 2)}, 0));
      samples.at(rank).add(name, Dtype::bf16, shards.back().shape);
    }
    auto const whole =
        grouped ? join({slice_of(q, 0, 0, 8), k(0), v(0), slice_of(q, 0, 8, 8), k(1), v(1)}, 0) : join({q, kv}, 0);
    std::string problem;
    auto const rule = RuleSet::make(samples.set()).rule_for(name, samples.shards(name));
    EXPECT_EQ(merge_slowly(rule, shards, problem).bytes, whole.bytes) << rule.reason;
    EXPECT_EQ(problem, "");
    auto const back = round_trip({{name, Dtype::bf16, whole.shape, whole.bytes}}, small, 4);
    EXPECT_EQ(back, "");
  }
}

TEST(RuleParts, may_have_a_replicated_bias) {
  std::string const layer = "model.layers.0.self_attn.q_proj";
  Json const qwen = {{"model_type", "qwen2"}, {"hidden_size", 64}, {"num_attention_heads", 4}};
  auto const rule_of = [&](std::int64_t bias) {
    SampleSet samples(2, qwen);
    samples.add(layer + ".weight", Dtype::bf16, {32, 64}).add(layer + ".bias", Dtype::bf16, {bias});
    return RuleSet::make(samples.set()).rule_for(layer + ".bias", samples.shards(layer + ".bias"));
  };
  EXPECT_TRUE(rule_of(32).is<Concatenate>());
  EXPECT_TRUE(rule_of(64).is<KeepReplica>());
  EXPECT_THROW((void)rule_of(48 + 64), FormatError);
}

/// transformers splits the output projection of its linear attention along the outputs.
TEST(RuleParts, may_be_sharded_along_outputs_in_a_row_parallel_layer) {
  Json const qwen = {{"model_type", "qwen3_next"},  {"hidden_size", 64},          {"num_attention_heads", 4},
                     {"linear_num_value_heads", 4}, {"linear_value_head_dim", 8}, {"linear_num_key_heads", 2},
                     {"linear_key_head_dim", 8}};
  std::string const name = "model.layers.0.linear_attn.out_proj.weight";
  for (auto const& [shard, axis] : {std::pair(Shape{32, 32}, 0), std::pair(Shape{64, 16}, 1)}) {
    SampleSet samples(2, qwen);
    samples.add(name, Dtype::bf16, shard);
    auto const concat = concatenation_of(RuleSet::make(samples.set()).rule_for(name, samples.shards(name)));
    EXPECT_EQ(concat.axis, axis);
    EXPECT_FALSE(concat.unproven);
    // A program that splits this way splits fused layers as one block.
    std::string const fused = "model.layers.0.linear_attn.in_proj_qkv.weight";
    samples.add(fused, Dtype::bf16, {32, 64});
    auto const of_fused = concatenation_of(RuleSet::make(samples.set()).rule_for(fused, samples.shards(fused)));
    EXPECT_EQ(of_fused.parts.empty(), axis == 0);
  }
}

}  // namespace
}  // namespace crossrank::checkpoint
