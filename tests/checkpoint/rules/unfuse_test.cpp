// Layers that serving programs fuse are unfused if the model has their parts.
#include "workspace/checkpoint/rules/unfuse.hpp"

#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/checkpoint/support/rule_reference.hpp"
#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/plan/plan_shard_set.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"

namespace crossrank::checkpoint::unfuse_test {
namespace {

using testing::HasSubstr;

std::string const attention = "model.layers.0.self_attn.";
std::string const mlp = "model.layers.0.mlp.";

/// Returns a config with 8 query heads and `kv` key/value heads of 32, and feed-forward size 512.
Json config(std::int64_t kv = 4, char const* type = "llama") {
  return {{"model_type", type},        {"hidden_size", 256},       {"num_attention_heads", 8},
          {"num_key_value_heads", kv}, {"intermediate_size", 512}, {"hidden_act", "silu"}};
}

/// A tensor of a layer, with one row per `unit` outputs.
struct FusedPart {
  char const* suffix;
  Dtype dtype;
  std::int64_t unit;    ///< outputs per row
  Shape inner{};        ///< other dimensions
  bool shared = false;  ///< one value for all outputs
};

struct Layer {
  char const* title;
  std::vector<FusedPart> parts;
  Json quantization = Json::object();
};

std::vector<Layer> layers() {
  return {{"plain", {{".weight", Dtype::bf16, 1, {256}}, {".bias", Dtype::bf16, 1}}},
          {"fp8_channel", {{".weight", Dtype::f8_e4m3, 1, {256}}, {".weight_scale", Dtype::f32, 1, {1}}}},
          {"fp8_tensor",
           {{".weight", Dtype::f8_e4m3, 1, {256}},
            {".weight_scale", Dtype::f32, 0, {}, true},
            {".input_scale", Dtype::f32, 0, {}, true}}},
          {"nvfp4",
           {{".weight", Dtype::u8, 1, {128}},
            {".weight_scale", Dtype::f8_e4m3, 1, {16}},
            {".weight_scale_2", Dtype::f32, 0, {}, true}}},
          {"int4_of_modelopt",
           {{".weight", Dtype::u8, 2, {256}}, {".weight_scale", Dtype::f32, 1, {2}}},
           {{"quantization", {{"quant_algo", "W4A16_AWQ"}, {"group_size", 128}}}}}};
}

class Unfuse : public testing::TestWithParam<Layer> {
 protected:
  WholeTensor tensor(std::string const& module, FusedPart const& part, std::int64_t outputs) {
    std::vector<std::int64_t> lengths;
    if (!part.shared) lengths.push_back(outputs / part.unit);
    for (auto const length : part.inner) lengths.push_back(length);
    return random_tensor(module + part.suffix, part.dtype, Shape(lengths), random_);
  }

  /// Adds the parts of one layer as fused shards. Rank r has piece r / copies[i] of part i.
  void add(SampleSet& samples, int ranks, std::string const& fused,
           std::vector<std::pair<std::string, std::int64_t>> const& parts, std::vector<int> const& copies) {
    for (auto const& part : GetParam().parts) {
      std::vector<WholeTensor> wholes;
      for (auto const& [name, outputs] : parts) {
        wholes.push_back(tensor(name, part, outputs));
        if (part.shared) wholes.back().bytes = wholes.front().bytes;
        expected_.push_back(wholes.back());
      }
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<WholeTensor> mine;
        for (std::size_t i = 0; i < wholes.size(); ++i) {
          auto const pieces = ranks / copies[i];
          auto const length = part.shared ? 0 : wholes[i].shape[0] / pieces;
          mine.push_back(part.shared ? wholes[i] : slice_of(wholes[i], 0, rank / copies[i] * length, length));
        }
        auto const shard = part.shared ? mine.front() : join(mine, 0);
        samples.at(rank).add(fused + part.suffix, shard.dtype, shard.shape, shard.bytes);
      }
    }
  }

  void expect_parts(SampleSet& samples) {
    samples.set().quantization = GetParam().quantization;
    auto const rule_set = RuleSet::make(samples.set());
    if (samples.set().sources.size() == 1) {
      EXPECT_TRUE(RuleSet::changes_single_source(samples.set()));
    }
    auto const model =
        std::make_shared<MergeLayout const>(lay_out_merge(samples.set(), rules_of(rule_set, samples.set())));
    EXPECT_EQ(engine_differs(expected_, MergedSource(model)), "");
    // Replicas of shared heads are compared.
    for (auto const& planned : model->tensors) EXPECT_FALSE(planned.rule->is<SeparateParts>());
  }

  std::mt19937 random_{11};
  std::vector<WholeTensor> expected_{};
};

TEST_P(Unfuse, yields_parts_sharded_one_by_one) {
  for (int const ranks : {1, 2, 4}) {
    expected_.clear();
    SampleSet samples(ranks, config());
    add(samples, ranks, attention + "qkv_proj",
        {{attention + "q_proj", 256}, {attention + "k_proj", 128}, {attention + "v_proj", 128}}, {1, 1, 1});
    add(samples, ranks, mlp + "gate_up_proj", {{mlp + "gate_proj", 512}, {mlp + "up_proj", 512}}, {1, 1});
    expect_parts(samples);
  }
}

TEST_P(Unfuse, keeps_one_copy_of_shared_heads) {
  SampleSet samples(4, config(2));
  add(samples, 4, attention + "qkv_proj",
      {{attention + "q_proj", 256}, {attention + "k_proj", 64}, {attention + "v_proj", 64}}, {1, 2, 2});
  expect_parts(samples);
}

TEST_P(Unfuse, unfuses_a_replicated_layer) {
  SampleSet samples(2, config());
  add(samples, 2, attention + "qkv_proj",
      {{attention + "q_proj", 256}, {attention + "k_proj", 128}, {attention + "v_proj", 128}}, {2, 2, 2});
  expect_parts(samples);
}

INSTANTIATE_TEST_SUITE_P(All, Unfuse, testing::ValuesIn(layers()),
                         [](auto const& tested) { return std::string(tested.param.title); });

MergeRule rule_of(SampleSet& samples, std::string const& name) {
  return RuleSet::make(samples.set()).rule_for(name, samples.shards(name));
}

TEST(UnfusedLayers, are_split_when_the_model_type_has_parts) {
  for (auto const& [type, parts] :
       {std::pair("llama", 3U), std::pair("qwen3_moe", 3U), std::pair("phi3", 0U), std::pair("nobody_knows", 0U)}) {
    SampleSet samples(2, config(4, type));
    samples.add(attention + "qkv_proj.weight", Dtype::bf16, {256, 256});
    auto const rule = rule_of(samples, attention + "qkv_proj.weight");
    auto const* const separate = std::get_if<SeparateParts>(&rule.kind);
    EXPECT_EQ(separate != nullptr ? separate->rules.size() : 0U, parts) << type;
  }
}

TEST(UnfusedLayers, recompute_the_weight_shape) {
  SampleSet samples(2, config());
  samples.add(attention + "qkv_proj.weight_packed", Dtype::i32, {256, 32});
  samples.add(attention + "qkv_proj.weight_scale", Dtype::bf16, {256, 2});
  samples.add(attention + "qkv_proj.weight_shape", Dtype::i64, {2});
  auto const rule = rule_of(samples, attention + "qkv_proj.weight_shape");
  auto const* const separate = std::get_if<SeparateParts>(&rule.kind);
  ASSERT_TRUE(separate != nullptr && separate->rules.size() == 3);
  EXPECT_EQ(separate->rules[1].output_name, attention + "k_proj.weight_shape");
  std::int64_t lengths[2] = {0, 0};
  std::memcpy(lengths, std::get<UsePrecomputed>(separate->rules[1].kind).bytes.data(), sizeof lengths);
  EXPECT_THAT(lengths, testing::ElementsAre(128, 256));
}

TEST(UnfusedLayers, have_parts_that_each_become_one_tensor) {
  SampleSet samples(2);
  samples.add("fused", Dtype::bf16, {4});
  for (MergeKind const& kind : {MergeKind(LeaveOut{}), MergeKind(SeparateParts{}), MergeKind(MergeExpertGroups{2})}) {
    MergeRule const separate{.kind = SeparateParts{{MergeRule{.kind = kind}}}};
    EXPECT_THROW((void)lay_out_merge(samples.set(), [&](auto const&) { return separate; }), FormatError);
  }
}

TEST(UnfusedLayers, reject_parts_that_share_a_scale) {
  auto narrow = config();
  narrow["num_key_value_heads"] = 2;  // keys are 64 wide, blocks 128
  SampleSet samples(1, narrow);
  samples.add(attention + "qkv_proj.weight", Dtype::f8_e4m3, {384, 256});
  samples.add(attention + "qkv_proj.weight_scale_inv", Dtype::f32, {3, 2});
  try {
    (void)rule_of(samples, attention + "qkv_proj.weight_scale_inv");
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("multiples of 128 outputs"));
  }
}

TEST(UnfusedLayers, are_rejected_when_the_layer_is_one_block) {
  SampleSet samples(2, config());
  samples.set().fused = FusedLayout::plain;
  samples.add(attention + "qkv_proj.weight", Dtype::bf16, {256, 256});
  EXPECT_THROW((void)rule_of(samples, attention + "qkv_proj.weight"), FormatError);
}

/// vLLM's name for two layers of DeepSeek that every rank has whole.
TEST(UnfusedLayers, into_a_latent_are_taken_from_one_rank) {
  std::mt19937 random(14);
  auto deepseek = config(8, "deepseek_v3");
  deepseek.update(Json{{"q_lora_rank", 24},
                       {"kv_lora_rank", 16},
                       {"qk_rope_head_dim", 8},
                       {"qk_nope_head_dim", 16},
                       {"v_head_dim", 16}});
  auto const q = random_tensor(attention + "q_a_proj.weight", Dtype::bf16, {24, 256}, random);
  auto const kv = random_tensor(attention + "kv_a_proj_with_mqa.weight", Dtype::bf16, {24, 256}, random);
  auto const fused = join({q, kv}, 0);
  SampleSet samples(2, deepseek);
  for (int const rank : {0, 1})
    samples.at(rank).add(attention + "fused_qkv_a_proj.weight", fused.dtype, fused.shape, fused.bytes);
  auto const rule_set = RuleSet::make(samples.set());
  EXPECT_EQ(engine_differs({q, kv}, MergedSource(std::make_shared<MergeLayout const>(
                                        lay_out_merge(samples.set(), rules_of(rule_set, samples.set()))))),
            "");
}

/// With transformers' own tensor parallelism, rank 0 has the whole gate and rank 1 the whole up projection.
TEST(FusedLayout, plain_concatenates_whole_shards) {
  std::mt19937 random(12);
  auto const fused = random_tensor(mlp + "gate_up_proj.weight", Dtype::bf16, {1024, 256}, random);
  SampleSet samples(2, config(4, "glm4"));
  for (int const rank : {0, 1}) {
    auto const half = slice_of(fused, 0, rank * 512, 512);
    samples.at(rank).add(fused.name, fused.dtype, half.shape, half.bytes);
  }
  auto const merged = [&] {
    auto const rule_set = RuleSet::make(samples.set());
    return engine_differs({fused}, MergedSource(std::make_shared<MergeLayout const>(
                                       lay_out_merge(samples.set(), rules_of(rule_set, samples.set())))));
  };
  EXPECT_NE(merged(), "");
  EXPECT_TRUE(concatenation_of(rule_of(samples, fused.name)).assumed_layout);
  samples.set().fused = FusedLayout::plain;
  EXPECT_EQ(merged(), "");
  EXPECT_FALSE(concatenation_of(rule_of(samples, fused.name)).assumed_layout);
  samples.set().fused = FusedLayout::per_rank;
  EXPECT_FALSE(concatenation_of(rule_of(samples, fused.name)).assumed_layout);
}

}  // namespace
}  // namespace crossrank::checkpoint::unfuse_test
