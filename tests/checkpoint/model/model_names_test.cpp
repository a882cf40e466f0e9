// Compares the names of a result with those of its type of model.
#include "workspace/checkpoint/model/model_names.hpp"

#include <algorithm>
#include <initializer_list>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workspace/checkpoint/model/model_families.hpp"

namespace crossrank::checkpoint::model_names_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Json config(char const* type = "llama") {
  return {{"model_type", type},
          {"architectures", {"LlamaForCausalLM"}},
          {"num_hidden_layers", 3},
          {"tie_word_embeddings", false}};
}

std::vector<std::string> llama(std::string const& prefix = "model.") {
  std::vector<std::string> names{prefix + "embed_tokens.weight", prefix + "norm.weight", "lm_head.weight"};
  for (int layer = 0; layer < 3; ++layer) {
    for (auto const* name : {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                             "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      names.push_back(prefix + "layers." + std::to_string(layer) + "." + name + ".weight");
  }
  return names;
}

/// Returns `names` and a bias of each of `modules` in each layer.
std::vector<std::string> with_biases(std::vector<std::string> names, std::initializer_list<char const*> modules) {
  for (int layer = 0; layer < 3; ++layer) {
    for (std::string const module : modules)
      names.push_back("model.layers." + std::to_string(layer) + ".self_attn." + module + ".bias");
  }
  return names;
}

std::vector<std::string> without(std::vector<std::string> names, std::string_view part) {
  std::erase_if(names, [&](auto const& name) { return name.find(part) != std::string::npos; });
  return names;
}

auto finding(std::string const& resource, std::string const& text) {
  return AllOf(Field("kind", &Defect::kind, DefectKind::coverage), Field("resource", &Defect::resource, resource),
               Field("text", &Defect::text, HasSubstr(text)));
}

TEST(ModelNames, reports_nothing_for_a_whole_model) {
  EXPECT_THAT(ModelNames(config()).check(llama(), "model"), IsEmpty());
  EXPECT_THAT(ModelNames(config()).check(llama(""), "model"),
              IsEmpty());  // a model without a head, whose names lack "model."
  auto names = llama();
  for (auto const* more :
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.q_proj.bias",
        "model.layers.1.self_attn.q_proj.weight_scale", "model.layers.1.self_attn.k_proj.k_scale",
        "model.layers.1.self_attn.kv_scale", "model.layers.1.mlp.act.scales", "model.layers.3.eh_proj.weight"})
    names.emplace_back(more);
  EXPECT_THAT(ModelNames(config()).check(names, "model"), IsEmpty());
}

TEST(ModelNames, reports_a_prefix_that_the_type_of_model_does_not_have) {
  EXPECT_THAT(ModelNames(config()).check(llama("module.model."), "model"),
              ElementsAre(finding("module.model.layers.*", "no \"module.\" before the names of their layers")));
}

TEST(ModelNames, accepts_the_values_of_a_quantizer_below_a_layer) {
  auto quantized = config();
  quantized["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  auto names = llama();
  for (auto const* more : {"weight.absmax", "weight.quant_state.bitsandbytes__nf4", "SCB", "weight_format"})
    names.push_back("model.layers.0.mlp.down_proj." + std::string(more));
  EXPECT_THAT(ModelNames(quantized).check(names, "model"), IsEmpty());
  EXPECT_THAT(ModelNames(config()).check(names, "model"), SizeIs(4));
  // HQQ has W_q in place of weight.
  names = without(llama(), "layers.1.mlp.up_proj");
  names.emplace_back("model.layers.1.mlp.up_proj.W_q");
  EXPECT_THAT(ModelNames(quantized).check(names, "model"), IsEmpty());
}

TEST(ModelNames, reports_a_name_missing_from_one_layer) {
  EXPECT_THAT(ModelNames(config()).check(without(llama(), "layers.1.mlp.up_proj"), "model"),
              ElementsAre(finding("model.layers.*.mlp.up_proj", "missing in 1 layer:")));
}

TEST(ModelNames, reports_a_name_missing_from_all_layers) {
  EXPECT_THAT(ModelNames(config()).check(without(llama(), "q_proj"), "model"),
              ElementsAre(finding("model.layers.*.self_attn.q_proj", "missing in 3 layers:")));
}

TEST(ModelNames, counts_layers_with_a_weight_only) {
  for (auto const* part : {"layers.0.self_attn.q_proj.weight", "q_proj.weight"}) {
    auto const missing = std::string(part) == "q_proj.weight" ? "missing in 3 layers:" : "missing in 1 layer:";
    auto names = without(llama(), part);
    for (int layer = 0; layer < 3; ++layer) {
      for (auto const* suffix : {"weight_scale", "input_scale"})
        names.push_back("model.layers." + std::to_string(layer) + ".self_attn.q_proj." + suffix);
    }
    names.emplace_back("lm_head.weight_scale");
    EXPECT_THAT(ModelNames(config()).check(names, "model"),
                ElementsAre(finding("model.layers.*.self_attn.q_proj", missing)));
    auto const qwen = with_biases(without(llama(), part), {"q_proj", "k_proj", "v_proj"});
    EXPECT_THAT(ModelNames(config("qwen2")).check(qwen, "model"),
                ElementsAre(finding("model.layers.*.self_attn.q_proj", missing)));
  }
  auto const head = ModelNames(config()).check(without(llama(), "nothing"), "model");
  EXPECT_THAT(head, IsEmpty());
  auto names = without(llama(), "lm_head");
  names.emplace_back("lm_head.weight_scale");
  EXPECT_THAT(ModelNames(config()).check(names, "model"), ElementsAre(finding("lm_head", "missing")));
  // Packed weights are weights.
  names = without(llama(), "layers.1.mlp.up_proj");
  for (auto const* suffix : {"weight_packed", "weight_scale"})
    names.push_back("model.layers.1.mlp.up_proj." + std::string(suffix));
  EXPECT_THAT(ModelNames(config()).check(names, "model"), IsEmpty());
}

TEST(ModelNames, reports_missing_biases_of_types_that_always_have_them) {
  auto const qwen = with_biases(llama(), {"q_proj", "k_proj", "v_proj"});
  for (auto const* type : {"qwen2", "qwen2_moe"}) {
    EXPECT_THAT(ModelNames(config(type)).check(qwen, "model"), IsEmpty());
    EXPECT_THAT(ModelNames(config(type)).check(without(qwen, "layers.1.self_attn.k_proj.bias"), "model"),
                ElementsAre(finding("model.layers.*.self_attn.k_proj.bias", "missing in 1 layer:")));
    EXPECT_THAT(ModelNames(config(type)).check(without(qwen, ".bias"), "model"), SizeIs(3));
    for (auto const* key : {"attention_bias", "qkv_bias"}) {
      auto refused = config(type);
      refused[key] = false;
      EXPECT_THAT(ModelNames(refused).check(without(qwen, ".bias"), "model"), IsEmpty());
    }
  }
  EXPECT_THAT(ModelNames(config("seed_oss")).check(llama(), "model"), IsEmpty());
}

/// A name with a typo would have no effect.
TEST(ModelFamilies, name_their_biased_modules_as_in_the_layer) {
  for (auto const& family : model_families()) {
    if (family.biased.empty()) continue;
    std::string rest(family.biased);
    for (auto end = rest.find(' '); !rest.empty(); end = rest.find(' ')) {
      auto const name = rest.substr(0, end);
      EXPECT_TRUE(family.layer.find(name.substr(0, name.find('{'))) != std::string_view::npos) << name;
      rest.erase(0, end == std::string::npos ? end : end + 1);
    }
  }
}

TEST(ModelNames, reports_a_name_unknown_to_the_model_type) {
  auto names = llama();
  names.emplace_back("model.layers.2.self_attn.qkv_proj.weight");
  EXPECT_THAT(ModelNames(config()).check(names, "model"),
              ElementsAre(finding("model.layers.*.self_attn.qkv_proj", "models of type llama have no such layer")));
}

TEST(ModelNames, reports_missing_names_outside_the_layers) {
  EXPECT_THAT(ModelNames(config()).check(without(llama(), "embed_tokens"), "model"),
              ElementsAre(finding("model.embed_tokens", "missing")));
  EXPECT_THAT(ModelNames(config()).check(without(llama(), "lm_head"), "model"),
              ElementsAre(finding("lm_head", "missing")));
}

TEST(ModelNames, allows_a_missing_head_when_the_model_has_none) {
  auto const names = without(llama(), "lm_head");
  auto tied = config();
  tied["tie_word_embeddings"] = true;
  auto classifier = config();
  classifier["architectures"] = {"LlamaForSequenceClassification"};
  for (auto const& one : {tied, classifier}) EXPECT_THAT(ModelNames(one).check(names, "model"), IsEmpty());
}

TEST(ModelNames, accepts_dense_per_expert_and_stacked_feed_forwards) {
  auto const moe = config("qwen2_moe");
  auto names = without(with_biases(llama(), {"q_proj", "k_proj", "v_proj"}), "layers.1.mlp");
  auto const layer = std::string("model.layers.1.mlp.");
  for (auto const* one :
       {"gate", "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate"})
    names.push_back(layer + one + ".weight");
  auto stacked = names;
  for (auto const* one : {"experts.gate_up_proj", "experts.down_proj"}) stacked.push_back(layer + one);
  EXPECT_THAT(ModelNames(moe).check(stacked, "model"), IsEmpty());
  auto each = names;
  for (auto const* one : {"gate_proj", "up_proj", "down_proj"}) each.push_back(layer + "experts.3." + one + ".weight");
  EXPECT_THAT(ModelNames(moe).check(each, "model"), IsEmpty());
  EXPECT_THAT(ModelNames(moe).check(without(each, "experts.3.up"), "model"),
              ElementsAre(finding("model.layers.*.mlp.experts.*.up_proj", "missing in 1 layer")));
}

TEST(ModelNames, ignores_unknown_model_types) {
  for (Json const& unknown : {config("nobody_knows"), Json::object(), Json(nullptr)}) {
    EXPECT_FALSE(ModelNames(unknown).known());
    EXPECT_THAT(ModelNames(unknown).check(without(llama(), "q_proj"), "model"), IsEmpty());
  }
  auto parts = config();
  parts["vision_config"] = Json::object();
  EXPECT_THAT(ModelNames(parts).check(without(llama(), "q_proj"), "model"), IsEmpty());
}

TEST(ModelNames, returns_the_parts_of_fused_layers) {
  ModelNames const names(config());
  EXPECT_THAT(names.parts_of("model.layers.1.self_attn.qkv_proj"),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                          "model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(names.parts_of("model.layers.1.mlp.gate_up_proj"), SizeIs(2));
  EXPECT_THAT(names.parts_of("model.layers.1.mlp.down_proj"), IsEmpty());
  EXPECT_THAT(ModelNames(config("glm4")).parts_of("model.layers.1.mlp.gate_up_proj"), IsEmpty());
  EXPECT_THAT(ModelNames(config("qwen2_moe")).parts_of("model.layers.1.mlp.shared_expert.gate_up_proj"), SizeIs(2));
}

TEST(FusedLayers, are_reported_for_unknown_model_types) {
  std::vector<std::string> const names{"model.layers.0.mlp.experts.gate_up_proj",
                                       "model.layers.0.self_attn.qkv_proj.weight"};
  EXPECT_THAT(check_fused_layers(names, config("nobody_knows")),
              ElementsAre(finding("model.layers.0.self_attn.qkv_proj.weight", "models of type \"nobody_knows\"")));
}

TEST(StackedLayers, are_recognised_by_names_without_layer_numbers) {
  std::vector<std::string> const stacked{"decoder.layers.self_attention.linear_qkv.weight",
                                         "decoder.layers.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"};
  EXPECT_THAT(check_stacked_layers(stacked),
              ElementsAre(finding("decoder.layers.self_attention.linear_qkv.weight", "stacked in 2 tensors")));
  EXPECT_THAT(check_stacked_layers(llama()), IsEmpty());
}

/// A type that is listed in two families would get the names of the first one.
TEST(ModelFamilies, list_each_type_once) {
  std::vector<std::string> types;
  for (auto const& family : model_families()) {
    std::string_view rest = family.types;
    while (!rest.empty()) {
      auto const end = std::min(rest.find(' '), rest.size());
      types.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  std::sort(types.begin(), types.end());
  EXPECT_EQ(std::adjacent_find(types.begin(), types.end()), types.end());
  EXPECT_GT(types.size(), 40U);
}

}  // namespace
}  // namespace crossrank::checkpoint::model_names_test
