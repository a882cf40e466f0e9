// Layers that vLLM and SGLang store in another order, or under other names, than the model.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/tensor/concat.hpp>

#include "tests/checkpoint/support/numbered.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/discovery/vllm_names.hpp"

namespace crossrank::checkpoint::vllm_names_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::numbered;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns the rule for one tensor of two ranks of vLLM.
MergeRule rule_of(Json const& config, std::string const& name, Shape const& shape) {
  SampleSet samples(2, config);
  samples.set().saved_by_vllm = true;
  samples.set().fused = FusedLayout::per_rank;
  samples.add(name, Dtype::bf16, shape);
  return RuleSet::make(samples.set()).rule_for(name, samples.shards(name));
}

Json attention(char const* type) {
  return {{"model_type", type},
          {"hidden_size", 16},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"intermediate_size", 24}};
}

TEST(OrderOfVllm, is_refused_where_the_model_alternates_heads) {
  for (auto const* type : {"gpt_neox", "bloom", "falcon"}) {
    auto const name = "gpt_neox.layers.0.attention.query_key_value.weight";
    EXPECT_THAT(error_of<FormatError>([&] {
                  (void)rule_of(attention(type), name, {24, 16});
                }).message,
                HasSubstr("vLLM"))
        << type;
  }
}

TEST(OrderOfVllm, is_that_of_the_model_for_internlm2) {
  auto config = attention("internlm2");
  config["num_key_value_heads"] = 2;
  auto const rule = rule_of(config, "model.layers.0.attention.wqkv.weight", {16, 16});
  EXPECT_THAT(concatenation_of(rule).parts, ElementsAre(2, 1, 1));
}

TEST(OrderOfVllm, has_the_parts_of_linear_attention_in_a_row) {
  auto config = attention("qwen3_5_text");
  config.update({{"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 4},
                 {"linear_value_head_dim", 4}});
  EXPECT_THAT(concatenation_of(rule_of(config, "model.layers.0.linear_attn.in_proj_qkvz.weight", {24, 16})).parts,
              ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(concatenation_of(rule_of(config, "model.layers.0.linear_attn.in_proj_ba.weight", {4, 16})).parts,
              ElementsAre(1, 1));
}

/// The model stores the transposed matrices under its own name, and gpt-oss alternates gate and up.
TEST(OrderOfVllm, of_turned_stacks_keeps_their_names) {
  for (auto const* type : {"gpt_oss", "llama4_text"}) {
    auto config = attention(type);
    config.update({{"num_local_experts", 2}, {"num_experts", 2}});
    auto const rule = rule_of(config, "model.layers.0.mlp.experts.w13_weight", {2, 24, 16});
    EXPECT_EQ(rule.output_name, "") << type;
    EXPECT_EQ(concatenation_of(rule).axis, 1) << type;
    EXPECT_EQ(concatenation_of(rule).parts.size(), std::string(type) == "gpt_oss" ? 0U : 2U) << rule.reason;
  }
}

class SavedByVllm : public testing::Test {
 protected:
  void put(std::string const& name, StateDict const& weights) const {
    fs::create_directories((in() / name).parent_path());
    save_safetensors(in() / name, weights);
  }
  void put_json(std::string const& name, Json const& json) const {
    fs::create_directories((in() / name).parent_path());
    std::ofstream(in() / name) << json;
  }
  /// Removes all files but puts a config.
  void begin_anew(Json const& config) const {
    fs::remove_all(in());
    fs::remove_all(folder_.path() / "out");
    put_json("config.json", config);
  }
  [[nodiscard]] MergePlan plan() const { return MergePlan::make(world_, in()); }
  [[nodiscard]] StateDict merged() const {
    (void)consolidate(world_, plan(), folder_.path() / "out");
    return load_safetensors(folder_.path() / "out" / "model.safetensors");
  }
  [[nodiscard]] fs::path in() const { return folder_.path() / "in"; }

  test::TemporaryDirectory folder_{};
  Collective world_ = connect({.backend = "fake"});
};

TEST_F(SavedByVllm, tied_layers_are_the_embedding) {
  auto config = attention("llama");
  config.update({{"tie_word_embeddings", true}, {"vocab_size", 8}, {"num_hidden_layers", 0}});
  for (int const ranks : {1, 2}) {
    begin_anew(config);
    for (int rank = 0; rank < ranks; ++rank) {
      put("model-rank-" + std::to_string(rank) + "-part-0.safetensors",
          {{"lm_head.weight", numbered({8 / ranks, 16}, static_cast<float>(rank * 64))}});
    }
    auto const out = merged();
    ASSERT_EQ(out.size(), 1U);
    EXPECT_EQ(out.at("model.embed_tokens.weight").shape(), (Shape{8, 16})) << ranks;
  }
}

/// vLLM stores the embedding with a multiple of 64 rows, also on a single rank.
TEST_F(SavedByVllm, has_the_rows_of_the_vocabulary_on_any_number_of_ranks) {
  auto config = attention("llama");
  config.update({{"tie_word_embeddings", false}, {"vocab_size", 50}, {"num_hidden_layers", 0}});
  for (int const ranks : {1, 2}) {
    begin_anew(config);
    for (int rank = 0; rank < ranks; ++rank) {
      auto const rows = numbered({64 / ranks, 16}, static_cast<float>(rank * 512));
      put("model-rank-" + std::to_string(rank) + "-part-0.safetensors",
          {{"model.embed_tokens.weight", rows}, {"lm_head.weight", rows}});
    }
    for (auto const& [name, tensor] : merged()) {
      EXPECT_EQ(tensor.shape(), (Shape{50, 16})) << name << ", " << ranks;
      EXPECT_EQ(tensor.as<float>()[50 * 16 - 1], 50 * 16 - 1) << name << ", " << ranks;
    }
  }
}

TEST(NameBeforeVllm, is_that_of_the_module_in_the_model) {
  auto const name = [](char const* type, std::string const& rest) {
    return name_before_vllm("model.layers.3." + rest, ModelNames(Json{{"model_type", type}})).substr(15);
  };
  EXPECT_EQ(name("qwen3_moe", "mlp.experts.gate.weight"), "mlp.gate.weight");
  EXPECT_EQ(name("qwen3_moe", "mlp.experts.routed_experts.w13_weight"), "mlp.experts.w13_weight");
  EXPECT_EQ(name("qwen2_moe", "mlp.experts._shared_experts._layer.down_proj.weight"),
            "mlp.shared_expert.down_proj.weight");
  EXPECT_EQ(name("qwen2_moe", "mlp.experts._shared_experts._layer.expert_gate.weight"),
            "mlp.shared_expert_gate.weight");
  EXPECT_EQ(name("qwen2_moe", "mlp.experts.shared_expert_gate.weight"), "mlp.shared_expert_gate.weight");
  EXPECT_EQ(name("llama4_text", "feed_forward.experts._shared_experts._layer.down_proj.weight"),
            "feed_forward.shared_expert.down_proj.weight");
  EXPECT_EQ(name("deepseek_v3", "mlp.experts._shared_experts._layer.down_proj.weight"),
            "mlp.shared_experts.down_proj.weight");
  EXPECT_EQ(name("glm4_moe", "mlp.experts.routed_experts.e_score_correction_bias"), "mlp.gate.e_score_correction_bias");
  EXPECT_EQ(name("ernie4_5_moe", "mlp.experts.routed_experts.e_score_correction_bias"),
            "mlp.moe_statics.e_score_correction_bias");
  EXPECT_EQ(name("deepseek_v3", "self_attn.mla_attn.o_proj.weight"), "self_attn.o_proj.weight");
  EXPECT_EQ(name("deepseek_v3", "self_attn.mla_attn.mla_attn.kv_b_proj.weight"), "self_attn.kv_b_proj.weight");
  EXPECT_EQ(name("mixtral", "block_sparse_moe.experts.routed_experts.w2_weight"), "mlp.experts.w2_weight");
  EXPECT_EQ(name("mixtral", "block_sparse_moe.gate.weight"), "mlp.gate.weight");
  EXPECT_EQ(name("granitemoe", "block_sparse_moe.gate.weight"), "block_sparse_moe.gate.weight");
}

/// The names of a mixture of experts in states that vLLM 0.33 saves.
TEST_F(SavedByVllm, gives_experts_and_router_the_names_of_the_model) {
  auto config = attention("qwen3_moe");
  config.update({{"num_hidden_layers", 1}, {"num_experts", 2}, {"moe_intermediate_size", 4}});
  put_json("config.json", config);
  std::string const layer = "model.layers.0.mlp.";
  auto const gate = numbered({2, 16});
  auto const up = numbered({2, 8, 16}, 100);
  for (int rank = 0; rank < 2; ++rank) {
    auto const half = slice(up, {.dim = 1}, 2 * rank, 2);
    auto const other_half = slice(up, {.dim = 1}, 4 + 2 * rank, 2);
    put("model-rank-" + std::to_string(rank) + "-part-0.safetensors",
        {{layer + "experts.gate.weight", gate},
         {layer + "experts.routed_experts.w13_weight", concat(std::vector{half, other_half}, {.dim = 1})},
         {layer + "experts.routed_experts.w2_weight", numbered({2, 16, 2}, static_cast<float>(500 * rank))}});
  }
  auto const out = merged();
  ASSERT_EQ(out.size(), 3U);
  EXPECT_TRUE(std::ranges::equal(out.at(layer + "gate.weight").bytes(), gate.bytes()));
  EXPECT_TRUE(std::ranges::equal(out.at(layer + "experts.gate_up_proj").bytes(), up.bytes()));
  EXPECT_EQ(out.at(layer + "experts.down_proj").shape(), (Shape{2, 16, 4}));
}

TEST_F(SavedByVllm, keeps_a_name_whose_new_name_is_taken) {
  auto config = attention("qwen3_moe");
  config.update({{"num_hidden_layers", 1}, {"num_experts", 2}});
  put_json("config.json", config);
  put("model-rank-0-part-0.safetensors", {{"model.layers.0.mlp.experts.gate.weight", numbered({2, 16})},
                                          {"model.layers.0.mlp.gate.weight", numbered({2, 16}, 40)}});
  EXPECT_EQ(merged().size(), 2U);
}

TEST_F(SavedByVllm, warns_of_fused_layers_of_encoders) {
  auto config = attention("llava");
  config.update({{"text_config", attention("llama")}, {"vision_config", attention("clip_vision_model")}});
  config["text_config"]["num_hidden_layers"] = 0;
  put_json("config.json", config);
  put("model-rank-0-part-0.safetensors",
      {{"vision_tower.vision_model.encoder.layers.0.self_attn.qkv_proj.weight", numbered({48, 16})}});
  std::vector<std::string> warnings;
  set_log_sink([&](LogEvent const& event) { warnings.emplace_back(event.message); });
  (void)plan();
  set_log_sink({});
  EXPECT_THAT(warnings, testing::Contains(HasSubstr("fused, but it is unknown")));
}

/// vLLM copies all files of the model but its weights.
TEST_F(SavedByVllm, ignores_the_index_of_the_model_before) {
  put_json("model.safetensors.index.json",
           {{"weight_map", {{"model.norm.weight", "model-00001-of-00002.safetensors"}}}});
  for (int rank = 0; rank < 2; ++rank)
    put("model-rank-" + std::to_string(rank) + "-part-0.safetensors", {{"model.norm.weight", numbered({16})}});
  EXPECT_EQ(merged().size(), 1U);
}

TEST(IndexOfARank, lists_a_tensor_that_no_file_has) {
  test::TemporaryDirectory const folder;
  for (int rank = 0; rank < 2; ++rank) {
    auto const directory = folder.path() / ("pp_" + std::to_string(rank));
    fs::create_directory(directory);
    auto const name = "model.layers." + std::to_string(rank) + ".input_layernorm.weight";
    save_safetensors(directory / "model.safetensors", {{name, numbered({16})}});
    Json index = {{"weight_map", {{name, "model.safetensors"}}}};
    if (rank == 1) index["weight_map"]["model.norm.weight"] = "model.safetensors";
    std::ofstream(directory / "model.safetensors.index.json") << index;
  }
  EXPECT_THAT(open_shard_set(folder.path()).absent, ElementsAre("model.norm.weight"));
  auto const world = connect({.backend = "fake"});
  EXPECT_THAT(error_of<FormatError>([&] { (void)MergePlan::make(world, folder.path()); }).message,
              HasSubstr("model.norm.weight"));
}

/// Two stages number their layers through, and both have the whole tower.
TEST(TowersOfStages, are_copies) {
  test::TemporaryDirectory const folder;
  auto config = attention("qwen2_vl");
  config.update({{"num_hidden_layers", 4}, {"vision_config", {{"depth", 2}}}, {"ep_size", 1}});
  std::ofstream(folder.path() / "config.json") << config;
  for (int stage = 0; stage < 2; ++stage) {
    StateDict weights;
    for (int i = 0; i < 2; ++i) {
      weights.insert_or_assign("visual.blocks." + std::to_string(i) + ".norm1.weight",
                               numbered({8}, static_cast<float>(10 * i)));
      weights.insert_or_assign("model.layers." + std::to_string(2 * stage + i) + ".input_layernorm.weight",
                               numbered({16}));
    }
    save_safetensors(folder.path() / ("rank_" + std::to_string(stage) + ".safetensors"), weights);
  }
  auto const world = connect({.backend = "fake"});

  // The config's "ep_size" of 1 does not hide the stages.
  (void)consolidate(world, MergePlan::make(world, folder.path()), folder.path() / "out");

  auto const merged = load_safetensors(folder.path() / "out" / "model.safetensors");
  EXPECT_EQ(merged.size(), 6U);
  EXPECT_TRUE(merged.contains("visual.blocks.1.norm1.weight"));
  EXPECT_TRUE(merged.contains("model.layers.3.input_layernorm.weight"));
}

/// Nothing but the model type tells the generations of state-space layers apart.
TEST(StateSpaceLayers, are_refused_without_a_model_type) {
  SampleSet samples(2, Json{{"hidden_size", 16}});
  std::string const name = "decoder.layers.0.mixer.in_proj.weight";
  samples.add(name, Dtype::bf16, {20, 16});
  EXPECT_THROW((void)RuleSet::make(samples.set()).rule_for(name, samples.shards(name)), FormatError);
}

/// The config of gpt-oss has more experts than the stack of blocks on each rank.
TEST(ExpertGroupsOfBlocks, are_found_by_their_length) {
  test::TemporaryDirectory const folder;
  auto config = attention("gpt_oss");
  config.update({{"num_local_experts", 4}});
  std::ofstream(folder.path() / "config.json") << config;
  for (int rank = 0; rank < 2; ++rank) {
    auto const blocks = Tensor::zeros({2, 8, 1, 16}, Dtype::u8);
    save_safetensors(folder.path() / ("rank_" + std::to_string(rank) + ".safetensors"),
                     {{"model.layers.0.mlp.experts.down_proj_blocks", blocks},
                      {"model.layers.0.mlp.experts.down_proj_scales", Tensor::zeros({2, 8, 1}, Dtype::u8)}});
  }
  EXPECT_EQ(open_shard_set(folder.path(), {.moe_ep = 2}).moe_ep, 2);
}

}  // namespace
}  // namespace crossrank::checkpoint::vllm_names_test
