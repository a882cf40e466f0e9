#include "workspace/checkpoint/rules/rule_set/rule_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/checkpoint/support/rule_reference.hpp"
#include "tests/checkpoint/support/shard_samples.hpp"
#include "workspace/checkpoint/model/layer_sizes.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint::rule_set_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json llama(int kv_heads = 4) {
  return {{"model_type", "llama"},           {"hidden_size", 64}, {"intermediate_size", 96}, {"num_attention_heads", 8},
          {"num_key_value_heads", kv_heads}, {"vocab_size", 160}, {"num_hidden_layers", 2},  {"hidden_act", "silu"},
          {"tie_word_embeddings", false}};
}

MergeRule ask(SampleSet& samples, std::string const& name, int p = 0, int e = 0) {
  return RuleSet::make(samples.set()).rule_for(name, samples.shards(name, p, e));
}

template <class E = FormatError>
ErrorInfo refused(SampleSet& samples, std::string const& name) {
  try {
    (void)ask(samples, name);
  } catch (E const& error) {
    return error.info();
  }
  ADD_FAILURE() << name << " has a rule";
  return {};
}

void expect_concat(MergeRule const& rule, int axis) {
  auto const concat = concatenation_of(rule);
  EXPECT_EQ(concat.axis, axis) << rule.reason;
  EXPECT_FALSE(concat.unproven) << rule.reason;
}

void expect_replicate(MergeRule const& rule) { EXPECT_TRUE(rule.is<KeepReplica>()) << rule.reason; }

TEST(RuleSet, splits_a_llama_by_names_and_sizes) {
  SampleSet samples(2, llama());
  std::string const layer = "model.layers.1.";
  samples.add("model.embed_tokens.weight", Dtype::bf16, {80, 64})
      .add("lm_head.weight", Dtype::bf16, {160, 64})
      .add(layer + "self_attn.q_proj.weight", Dtype::bf16, {32, 64})
      .add(layer + "self_attn.q_proj.bias", Dtype::bf16, {32})
      .add(layer + "self_attn.k_proj.weight", Dtype::bf16, {16, 64})
      .add(layer + "self_attn.o_proj.weight", Dtype::bf16, {64, 32})
      .add(layer + "self_attn.o_proj.bias", Dtype::bf16, {64})
      .add(layer + "mlp.up_proj.weight", Dtype::bf16, {48, 64})
      .add(layer + "mlp.down_proj.weight", Dtype::bf16, {64, 48})
      .add(layer + "input_layernorm.weight", Dtype::bf16, {64})
      .add("model.norm.weight", Dtype::bf16, {64});
  expect_concat(ask(samples, "model.embed_tokens.weight"), 0);
  expect_replicate(ask(samples, "lm_head.weight"));
  expect_concat(ask(samples, layer + "self_attn.q_proj.weight"), 0);
  expect_concat(ask(samples, layer + "self_attn.q_proj.bias"), 0);
  expect_concat(ask(samples, layer + "self_attn.k_proj.weight"), 0);
  expect_concat(ask(samples, layer + "self_attn.o_proj.weight"), 1);
  expect_replicate(ask(samples, layer + "self_attn.o_proj.bias"));
  expect_concat(ask(samples, layer + "mlp.up_proj.weight"), 0);
  expect_concat(ask(samples, layer + "mlp.down_proj.weight"), 1);
  expect_replicate(ask(samples, layer + "input_layernorm.weight"));
  expect_replicate(ask(samples, "model.norm.weight"));
}

TEST(RuleSet, keeps_a_replicated_layer) {
  SampleSet samples(2, llama());
  samples.add("model.layers.0.self_attn.q_proj.weight", Dtype::f32, {64, 64})
      .add("model.layers.0.self_attn.o_proj.weight", Dtype::f32, {64, 64});
  expect_replicate(ask(samples, "model.layers.0.self_attn.q_proj.weight"));
  expect_replicate(ask(samples, "model.layers.0.self_attn.o_proj.weight"));
}

TEST(RuleSet, keeps_one_replica_of_key_value_heads) {
  SampleSet samples(4, llama(2));
  samples.add("model.layers.0.self_attn.v_proj.weight", Dtype::bf16, {8, 64})
      .add("model.layers.0.self_attn.v_proj.bias", Dtype::bf16, {8});
  for (auto const* name : {"model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.v_proj.bias"}) {
    auto const rule = ask(samples, name);
    expect_concat(rule, 0);
    EXPECT_EQ(concatenation_of(rule).replicas, 2);
  }
}

TEST(RuleSet, removes_the_padding_of_a_vocabulary) {
  SampleSet samples(3, llama());
  samples.add("model.embed_tokens.weight", Dtype::bf16, {54, 64});
  auto const rule = ask(samples, "model.embed_tokens.weight");
  expect_concat(rule, 0);
  EXPECT_EQ(concatenation_of(rule).true_size, 160);
}

TEST(RuleSet, merges_an_embedding_sharded_along_its_width) {
  SampleSet samples(2, llama());
  samples.add("tok_embeddings.weight", Dtype::bf16, {160, 32});
  expect_concat(ask(samples, "tok_embeddings.weight"), 1);
}

TEST(RuleSet, never_guesses_about_a_padded_vocabulary) {
  SampleSet samples(2, llama());
  samples.add("model.embed_tokens.weight", Dtype::bf16, {192, 64});
  EXPECT_THAT(refused(samples, "model.embed_tokens.weight").hint, HasSubstr("\"sharding\":\"replicate\""));
}

TEST(RuleSet, drops_a_tied_head_by_name) {
  auto config = llama();
  config["tie_word_embeddings"] = true;
  SampleSet samples(2, config);
  samples.add("lm_head.weight", Dtype::bf16, {80, 64});
  EXPECT_FALSE(ask(samples, "lm_head.weight").is<LeaveOut>()) << "no other tensor has its values";
  samples.add("model.embed_tokens.weight", Dtype::bf16, {80, 64});
  EXPECT_TRUE(ask(samples, "lm_head.weight").is<LeaveOut>());
  EXPECT_FALSE(ask(samples, "model.embed_tokens.weight").is<LeaveOut>());
}

TEST(RuleSet, keeps_a_tied_head_with_other_values) {
  auto config = llama();
  config["tie_word_embeddings"] = true;
  SampleSet samples(2, config);
  std::vector<std::byte> other(80 * 64 * 2);
  other[5000] = std::byte{1};
  for (int t = 0; t < 2; ++t) {
    samples.at(t).add("model.embed_tokens.weight", Dtype::bf16, {80, 64});
    samples.at(t).add("lm_head.weight", Dtype::bf16, {80, 64}, other);
    samples.at(t).add("lm_head.bias", Dtype::bf16, {80});
  }
  EXPECT_FALSE(ask(samples, "lm_head.weight").is<LeaveOut>());
  EXPECT_FALSE(ask(samples, "lm_head.bias").is<LeaveOut>());
}

TEST(RuleSet, keeps_the_head_of_a_whole_model) {
  Json const config{{"tie_word_embeddings", false}, {"text_config", {{"tie_word_embeddings", true}}}};
  SampleSet samples(2, config);
  samples.add("lm_head.weight", Dtype::bf16, {80, 64});
  samples.add("model.language_model.embed_tokens.weight", Dtype::bf16, {80, 64});
  EXPECT_FALSE(ask(samples, "lm_head.weight").is<LeaveOut>());
}

/// Returns the bytes of `count` BF16 numbers that are not all equal.
std::vector<std::byte> counted(std::size_t count) {
  std::vector<std::byte> bytes(count * 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

TEST(RuleSet, keeps_extra_rows_of_an_embedding) {
  // The rows after the tokens belong to images.
  SampleSet whole(1, llama());
  whole.add("model.embed_tokens.weight", Dtype::bf16, {168, 64});
  auto const rule_set = RuleSet::make(whole.set());
  EXPECT_EQ(rule_set.split_for("model.embed_tokens.weight", *whole.shards("model.embed_tokens.weight").front(), 2).axis,
            -1);
  SampleSet copies(2, llama());
  for (int t = 0; t < 2; ++t) copies.at(t).add("model.embed_tokens.weight", Dtype::bf16, {168, 64}, counted(168 * 64));
  expect_replicate(ask(copies, "model.embed_tokens.weight"));
}

TEST(RuleSet, treats_equal_tower_layers_as_replicas_despite_the_config) {
  Json const config{{"text_config", llama()},
                    {"vision_config", {{"hidden_size", 64}, {"num_attention_heads", 4}, {"head_dim", 32}}}};
  SampleSet samples(2, config);
  for (int t = 0; t < 2; ++t) {
    samples.at(t).add("model.vision_tower.layers.0.self_attn.q_proj.weight", Dtype::bf16, {64, 64}, counted(64 * 64));
  }
  samples.add("model.vision_tower.layers.0.self_attn.q_proj.bias", Dtype::bf16, {64});
  expect_replicate(ask(samples, "model.vision_tower.layers.0.self_attn.q_proj.weight"));
  expect_replicate(ask(samples, "model.vision_tower.layers.0.self_attn.q_proj.bias"));
}

struct TowerLayer {
  char const* model;
  char const* name;
  Shape shape;
  int axis;
};

/// The tower's config does not give the sizes of these layers.
TEST(RuleSet, joins_the_sharded_layers_of_the_towers_of_special_models) {
  for (auto const& [model, name, shape, axis] :
       {TowerLayer{"llama4_text", "vision_model.vision_adapter.mlp.fc1.weight", {40, 32}, 0},
        TowerLayer{"llama4_text", "vision_model.vision_adapter.mlp.fc2.weight", {80, 40}, 1},
        TowerLayer{"llama4_text", "vision_model.patch_embedding.linear.weight", {16, 12}, 0},
        TowerLayer{"llama4_text", "multi_modal_projector.linear_1.weight", {32, 80}, 0},
        TowerLayer{"muse_glimmer_text", "model.vision_adapter.fc1.weight", {40, 32}, 0},
        TowerLayer{"muse_glimmer_text", "model.vision_adapter.fc2.weight", {80, 40}, 1},
        TowerLayer{"muse_glimmer_text", "model.vision_projection.weight", {32, 80}, 0},
        TowerLayer{"muse_glimmer_text", "model.vision_tower.layers.0.attn.proj.weight", {32, 16}, 1},
        TowerLayer{"muse_glimmer_text", "model.vision_tower.patch_embedder.patch_embedding.weight", {16, 12}, 0}}) {
    auto text = llama();
    text["model_type"] = model;
    SampleSet samples(
        2, {{"text_config", text},
            {"vision_config", {{"hidden_size", 32}, {"num_attention_heads", 4}, {"intermediate_size", 48}}}});
    auto const bytes = as_size(shape[0] * shape[1]) * 2;
    for (int t = 0; t < 2; ++t)
      samples.at(t).add(name, Dtype::bf16, shape, std::vector<std::byte>(bytes, static_cast<std::byte>(t + 1)));
    auto const rule = ask(samples, name);
    EXPECT_EQ(concatenation_of(rule).axis, axis) << name << ": " << rule.reason;
  }
}

TEST(RuleSet, lists_all_layers_without_a_rule) {
  SampleSet samples(2, llama());
  samples.add("model.layers.3.adapter.mixer.weight", Dtype::bf16, {7, 64});
  samples.add("model.layers.4.adapter.mixer.weight", Dtype::bf16, {7, 64});
  samples.add("model.layers.3.flux.weight", Dtype::bf16, {7, 64});
  auto const info = refused(samples, "model.layers.3.flux.weight");
  EXPECT_THAT(info.message, HasSubstr("1 other layer"));
  EXPECT_THAT(info.details, ::testing::Contains(HasSubstr(R"("model.layers.*.adapter.mixer")")));
}

TEST(RuleSet, proposes_a_rule_for_an_unknown_name) {
  SampleSet samples(2, llama());
  samples.add("model.layers.3.adapter.mixer.weight", Dtype::bf16, {7, 64});
  auto const info = refused(samples, "model.layers.3.adapter.mixer.weight");
  EXPECT_EQ(info.resource, "model.layers.3.adapter.mixer.weight");
  EXPECT_THAT(info.hint, HasSubstr(R"({"layer":"model.layers.*.adapter.mixer","sharding":"replicate"})"));
  EXPECT_THAT(info.hint, HasSubstr(R"("sharding":"column")"));
}

TEST(RuleSet, proposes_the_axis_in_which_shards_differ) {
  SampleSet samples(2, llama());
  samples.at(0).add("odd", Dtype::bf16, {3, 64});
  samples.at(1).add("odd", Dtype::bf16, {2, 64});
  EXPECT_THAT(refused(samples, "odd").hint, HasSubstr(R"({"tensor":"odd","axis":0})"));
}

TEST(RuleSet, merges_state_space_layers_sharded_by_other_programs) {
  SampleSet samples(2, Json{{"model_type", "mamba2"},
                            {"hidden_size", 64},
                            {"expand", 2},
                            {"num_heads", 16},
                            {"n_groups", 2},
                            {"state_size", 8}});
  samples.add("backbone.layers.0.mixer.in_proj.weight", Dtype::bf16, {152, 64});
  samples.add("backbone.layers.0.mixer.A_log", Dtype::f32, {8})
      .add("backbone.layers.0.mixer.norm.weight", Dtype::bf16, {64});
  auto const rule_set = RuleSet::make(samples.set());
  auto const rule = [&](std::string const& name) { return rule_set.rule_for(name, samples.shards(name)); };
  // Gate, input, states twice, steps.
  EXPECT_EQ(concatenation_of(rule("backbone.layers.0.mixer.in_proj.weight")).parts,
            (std::vector<std::int64_t>{8, 8, 1, 1, 1}));
  EXPECT_TRUE(rule("backbone.layers.0.mixer.A_log").is<Concatenate>());
  EXPECT_TRUE(rule("backbone.layers.0.mixer.norm.weight").is<Concatenate>());
}

TEST(RuleSet, rejects_shards_that_do_not_add_up) {
  SampleSet samples(2, llama());
  samples.add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {40, 64});
  auto const info = refused(samples, "model.layers.0.mlp.up_proj.weight");
  EXPECT_THAT(info.expected, HasSubstr("96"));
  EXPECT_EQ(info.got, "40, 40");
}

TEST(RuleSet, names_the_file_that_lacks_a_tensor) {
  SampleSet samples(2, Json::object());
  samples.at(0).add("model.norm.weight", Dtype::bf16, {8});
  try {
    (void)RuleSet::make(samples.set()).rule_for("model.norm.weight", samples.shards("model.norm.weight"));
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().got, "rank1 lacks it, rank0 has it");
  }
}

TEST(RuleSet, names_the_rank_that_lacks_a_tensor) {
  SampleSet samples(2, llama());
  samples.at(0).add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {48, 64});
  EXPECT_THAT(refused(samples, "model.layers.0.mlp.up_proj.weight").failed_ranks, ElementsAre(1));
}

// The lengths of a layer come from its weight, so its scales used to be refused with advice about rules.
TEST(RuleSet, names_the_missing_weight_of_a_scale) {
  std::string const layer = "model.layers.0.mlp.up_proj";
  SampleSet some(2, llama());
  some.add(layer + ".weight_scale", Dtype::f32, {});
  some.at(0).add(layer + ".weight", Dtype::f8_e4m3, {48, 64});
  auto info = refused(some, layer + ".weight_scale");
  EXPECT_EQ(info.resource, layer + ".weight");
  EXPECT_EQ(info.got, "rank1 lacks it, rank0 has it");
  EXPECT_EQ(info.got, refused(some, layer + ".weight").got);
  EXPECT_THAT(info.failed_ranks, ElementsAre(1));

  SampleSet none(2, llama());
  none.add(layer + ".weight_scale", Dtype::f32, {});
  info = refused(none, layer + ".weight_scale");
  EXPECT_EQ(info.resource, layer);
  EXPECT_THAT(info.message, HasSubstr("no rank has the weight"));
  EXPECT_THAT(info.hint, testing::Not(HasSubstr("rule")));
}

// Without sizes in the config, one piece of an expert would pass for the whole.
TEST(RuleSet, names_the_rank_that_lacks_a_tensor_of_an_expert) {
  SampleSet samples(2, Json::object());
  std::string const expert = "model.layers.0.mlp.experts.0.";
  for (int rank = 0; rank < 2; ++rank) samples.at(rank).add(expert + "gate_proj.weight", Dtype::bf16, {4, 8});
  samples.at(0).add(expert + "down_proj.weight", Dtype::bf16, {8, 4});
  samples.at(0).add("model.layers.0.mlp.experts.1.down_proj.weight", Dtype::bf16, {8, 8});
  EXPECT_THAT(refused(samples, expert + "down_proj.weight").failed_ranks, ElementsAre(1));
  std::string const whole = "model.layers.0.mlp.experts.1.down_proj.weight";
  EXPECT_NO_THROW((void)RuleSet::make(samples.set()).rule_for(whole, samples.shards(whole)));
}

// A piece of a shared expert used to pass for a whole routed expert.
TEST(RuleSet, names_the_rank_that_lacks_a_tensor_of_a_shared_expert) {
  SampleSet samples(2, Json::object());
  std::string const name = "model.layers.0.mlp.shared_experts.down_proj.weight";
  samples.at(0).add(name, Dtype::bf16, {8, 4});
  EXPECT_THAT(refused(samples, name).failed_ranks, ElementsAre(1));
}

TEST(RuleSet, finds_the_sizes_of_the_language_model_in_either_part_of_a_config) {
  Json const sizes{{"hidden_size", 64}, {"head_dim", 16}, {"num_attention_heads_per_layer", Json::array({4, 8})}};
  for (Json const& config : {Json{{"text_config", sizes}}, Json{{"llm_config", sizes}},
                             Json{{"text_config", nullptr}, {"llm_config", sizes}}}) {
    EXPECT_EQ(ModelSizes(config)[SizeName::hidden], 64) << config;
    LayerSizes const layers(config);
    auto const* const second = layers.of("model.layers.1.self_attn.q_proj");
    ASSERT_NE(second, nullptr) << config;
    EXPECT_EQ((*second)[SizeName::heads], 8) << config;
  }
}

TEST(RuleSet, rejects_ranks_that_differ_in_another_axis) {
  SampleSet samples(2, llama());
  samples.at(0).add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {48, 64});
  samples.at(1).add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {48, 63});
  EXPECT_THAT(refused(samples, "model.layers.0.mlp.up_proj.weight").failed_ranks, ElementsAre(1));
}

TEST(RuleSet, merges_uneven_shards) {
  SampleSet samples(2, llama());
  samples.at(0).add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {60, 64});
  samples.at(1).add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {36, 64});
  expect_concat(ask(samples, "model.layers.0.mlp.up_proj.weight"), 0);
}

TEST(RuleSet, reports_sharding_inferred_from_the_name_alone) {
  SampleSet samples(2);
  samples.add("model.layers.0.mlp.up_proj.weight", Dtype::bf16, {48, 64});
  EXPECT_TRUE(concatenation_of(ask(samples, "model.layers.0.mlp.up_proj.weight")).unproven);
}

TEST(RuleSet, needs_no_rule_for_one_rank) {
  SampleSet samples(1, llama());
  samples.add("anything.at.all", Dtype::bf16, {7, 64});
  expect_replicate(ask(samples, "anything.at.all"));
}

TEST(RuleSet, rejects_descriptions_of_another_set) {
  SampleSet samples(1, llama());
  SampleSet others(1, llama());
  others.add("model.norm.weight", Dtype::bf16, {64});
  auto const rule_set = RuleSet::make(samples.set());
  EXPECT_THROW((void)rule_set.rule_for("model.norm.weight", others.shards("model.norm.weight")), UsageError);
}

}  // namespace
}  // namespace crossrank::checkpoint::rule_set_test
