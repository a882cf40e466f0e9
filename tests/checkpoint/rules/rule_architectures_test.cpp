#include <gtest/gtest.h>

#include <random>

#include "tests/checkpoint/rules/rule_architectures.hpp"

namespace crossrank::checkpoint::rule_architectures_test {
namespace {

std::vector<Architecture> architectures() {
  std::vector<Architecture> all;
  all.push_back({"llama",
                 config("llama"),
                 {{"model.embed_tokens.weight", {160, 64}, 0, second_half(160)},
                  {"lm_head.weight", {160, 64}, 0, second_half(160)},
                  {"model.norm.weight", {64}, -1, {}},
                  {"model.layers.0.input_layernorm.weight", {64}, -1, {}},
                  {"model.layers.0.self_attn.q_proj.weight", {64, 64}, 0, second_half(64)},
                  {"model.layers.0.self_attn.q_proj.bias", {64}, 0, second_half(64)},
                  {"model.layers.0.self_attn.v_proj.weight", {32, 64}, 0, second_half(32)},
                  {"model.layers.0.self_attn.o_proj.weight", {64, 64}, 1, second_half(64)},
                  {"model.layers.0.mlp.gate_proj.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.0.mlp.down_proj.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"qwen3",
                 with(config("qwen3"), {{"head_dim", 16}}),
                 {{"model.layers.0.self_attn.q_norm.weight", {16}, -1, {}},
                  {"model.layers.0.self_attn.q_proj.weight", {128, 64}, 0, second_half(128)},
                  {"model.layers.0.self_attn.o_proj.weight", {64, 128}, 1, second_half(128)}}});
  all.push_back({"gemma3",
                 Json{{"model_type", "gemma3"}, {"text_config", config("gemma3_text", "gelu_pytorch_tanh")}},
                 {{"language_model.model.layers.0.self_attn.k_norm.weight", {8}, -1, {}},
                  {"language_model.model.layers.0.pre_feedforward_layernorm.weight", {64}, -1, {}},
                  {"language_model.model.layers.0.mlp.up_proj.weight", {96, 64}, 0, second_half(96)}}});
  all.push_back({"olmo2",
                 config("olmo2"),
                 {{"model.layers.0.self_attn.q_norm.weight", {64}, -1, {}},
                  {"model.layers.0.self_attn.k_norm.weight", {32}, -1, {}},
                  {"model.layers.0.post_feedforward_layernorm.weight", {64}, -1, {}}}});
  all.push_back({"phi",
                 with(config("phi", "gelu_new"), {{"num_key_value_heads", 8}}),
                 {{"model.layers.0.self_attn.dense.weight", {64, 64}, 1, second_half(64)},
                  {"model.layers.0.self_attn.dense.bias", {64}, -1, {}},
                  {"model.layers.0.mlp.fc1.bias", {96}, 0, second_half(96)},
                  {"model.layers.0.mlp.fc2.weight", {64, 96}, 1, second_half(96)},
                  {"model.final_layernorm.bias", {64}, -1, {}}}});
  all.push_back({"phi3",
                 config("phi3"),
                 {{"model.layers.0.self_attn.qkv_proj.weight", {128, 64}, 0, halves({64, 32, 32})},
                  {"model.layers.0.mlp.gate_up_proj.weight", {192, 64}, 0, halves({96, 96})},
                  {"model.layers.0.mlp.down_proj.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"starcoder2",
                 config("starcoder2", "gelu_pytorch_tanh"),
                 {{"model.layers.0.mlp.c_fc.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.0.mlp.c_proj.weight", {64, 96}, 1, second_half(96)},
                  {"model.layers.0.self_attn.o_proj.bias", {64}, -1, {}}}});
  all.push_back({"gpt_neox",
                 with(config("gpt_neox", "gelu"), {{"num_key_value_heads", nullptr}}),
                 {{"gpt_neox.embed_in.weight", {160, 64}, 0, second_half(160)},
                  {"embed_out.weight", {160, 64}, 0, second_half(160)},
                  {"gpt_neox.layers.0.attention.query_key_value.weight", {192, 64}, 0, second_half(192)},
                  {"gpt_neox.layers.0.attention.query_key_value.bias", {192}, 0, second_half(192)},
                  {"gpt_neox.layers.0.attention.dense.weight", {64, 64}, 1, second_half(64)},
                  {"gpt_neox.layers.0.mlp.dense_h_to_4h.bias", {96}, 0, second_half(96)},
                  {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", {64, 96}, 1, second_half(96)},
                  {"gpt_neox.final_layer_norm.weight", {64}, -1, {}},
                  {"gpt_neox.layers.0.attention.bias", {1, 1, 32, 32}, -1, {}},
                  {"gpt_neox.layers.0.attention.masked_bias", {}, -1, {}}}});
  all.push_back({"gpt2",
                 Json{{"model_type", "gpt2"},
                      {"n_embd", 64},
                      {"n_head", 8},
                      {"n_layer", 2},
                      {"vocab_size", 160},
                      {"activation_function", "gelu_new"}},
                 {{"wte.weight", {160, 64}, 0, second_half(160)},
                  {"wpe.weight", {32, 64}, -1, {}},
                  {"h.0.ln_1.weight", {64}, -1, {}},
                  {"h.0.attn.bias", {1, 1, 32, 32}, -1, {}},
                  {"h.0.attn.c_attn.weight", {64, 192}, 1, halves({64, 64, 64})},
                  {"h.0.attn.c_attn.bias", {192}, 0, halves({64, 64, 64})},
                  {"h.0.attn.c_proj.weight", {64, 64}, 0, second_half(64)},
                  {"h.0.attn.c_proj.bias", {64}, -1, {}},
                  {"h.0.mlp.c_fc.weight", {64, 256}, 1, second_half(256)},
                  {"h.0.mlp.c_proj.weight", {256, 64}, 0, second_half(256)},
                  {"ln_f.bias", {64}, -1, {}}}});
  all.push_back({"mixtral",
                 with(config("mixtral"), {{"num_local_experts", 4}}),
                 {{"model.layers.0.block_sparse_moe.gate.weight", {4, 64}, -1, {}},
                  {"model.layers.0.block_sparse_moe.experts.3.w1.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.0.block_sparse_moe.experts.3.w2.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"qwen3_moe",
                 with(config("qwen3_moe"), {{"num_experts", 4}, {"moe_intermediate_size", 48}}),
                 {{"model.layers.0.mlp.gate.weight", {4, 64}, -1, {}},
                  {"model.layers.0.mlp.experts.1.gate_proj.weight", {48, 64}, 0, second_half(48)},
                  {"model.layers.0.mlp.experts.gate_up_proj", {4, 96, 64}, 1, halves({48, 48})},
                  {"model.layers.0.mlp.experts.down_proj", {4, 64, 48}, 2, second_half(48)},
                  {"model.layers.1.mlp.up_proj.weight", {96, 64}, 0, second_half(96)}}});
  all.push_back({"qwen2_moe",
                 with(config("qwen2_moe"),
                      {{"num_experts", 4}, {"moe_intermediate_size", 48}, {"shared_expert_intermediate_size", 80}}),
                 {{"model.layers.0.mlp.shared_expert.up_proj.weight", {80, 64}, 0, second_half(80)},
                  {"model.layers.0.mlp.shared_expert.down_proj.weight", {64, 80}, 1, second_half(80)},
                  {"model.layers.0.mlp.shared_expert_gate.weight", {1, 64}, -1, {}}}});
  all.push_back({"deepseek_v3",
                 with(config("deepseek_v3"), {{"kv_lora_rank", 16},
                                              {"q_lora_rank", 24},
                                              {"qk_nope_head_dim", 8},
                                              {"qk_rope_head_dim", 4},
                                              {"v_head_dim", 6},
                                              {"moe_intermediate_size", 48},
                                              {"n_shared_experts", 2},
                                              {"n_routed_experts", 4}}),
                 {{"model.layers.0.self_attn.q_a_proj.weight", {24, 64}, -1, {}},
                  {"model.layers.0.self_attn.q_b_proj.weight", {96, 24}, 0, second_half(96)},
                  {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {20, 64}, -1, {}},
                  {"model.layers.0.self_attn.kv_b_proj.weight", {112, 16}, 0, second_half(112)},
                  {"model.layers.0.self_attn.o_proj.weight", {64, 48}, 1, second_half(48)},
                  {"model.layers.1.mlp.gate.e_score_correction_bias", {4}, -1, {}},
                  {"model.layers.1.mlp.experts.0.up_proj.weight", {48, 64}, 0, second_half(48)},
                  {"model.layers.1.mlp.shared_experts.down_proj.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"gpt_oss",
                 with(config("gpt_oss"), {{"num_local_experts", 4}}),
                 {{"model.layers.0.self_attn.sinks", {8}, 0, second_half(8)},
                  {"model.layers.0.mlp.router.weight", {4, 64}, -1, {}},
                  {"model.layers.0.mlp.experts.gate_up_proj_blocks", {4, 192, 2, 16}, 1, second_half(192)},
                  {"model.layers.0.mlp.experts.gate_up_proj_scales", {4, 192, 2}, 1, second_half(192)},
                  {"model.layers.0.mlp.experts.gate_up_proj_bias", {4, 192}, 1, second_half(192)}}});
  // Plain weights of this model are transposed, unlike its blocks. For a square weight the shape does not show it.
  all.push_back({"gpt_oss_plain",
                 with(config("gpt_oss"), {{"num_local_experts", 4}, {"intermediate_size", 64}}),
                 {{"model.layers.0.mlp.experts.gate_up_proj", {4, 64, 128}, 2, second_half(128)},
                  {"model.layers.0.mlp.experts.down_proj", {4, 64, 64}, 1, second_half(64)},
                  {"model.layers.0.mlp.experts.down_proj_bias", {4, 64}, -1, {}}}});
  all.push_back(
      {"qwen3_vl_moe",
       Json{{"model_type", "qwen3_vl_moe"},
            {"text_config", with(config("qwen3_vl_moe_text"), {{"num_experts", 4}, {"moe_intermediate_size", 48}})}},
       {{"model.language_model.layers.0.mlp.experts.gate_up_proj", {4, 64, 96}, 2, halves({48, 48})},
        {"model.language_model.layers.0.mlp.experts.down_proj", {4, 48, 64}, 1, second_half(48)}}});
  all.push_back({"vision_beside",
                 Json{{"model_type", "gemma3"},
                      {"text_config", config("gemma3_text", "gelu_pytorch_tanh")},
                      {"vision_config", {{"hidden_size", 32}, {"intermediate_size", 48}, {"num_attention_heads", 2}}}},
                 {{"language_model.model.layers.0.self_attn.q_proj.weight", {64, 64}, 0, second_half(64)},
                  {"vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", {32, 32}, -1, {}},
                  {"vision_tower.vision_model.encoder.layers.0.mlp.fc2.weight", {32, 48}, -1, {}},
                  {"vision_tower.vision_model.embeddings.patch_embedding.weight", {32, 3, 2, 2}, -1, {}},
                  {"multi_modal_projector.mm_input_projection_weight", {32, 64}, -1, {}}}});
  all.push_back({"vision_of_unknown_sizes",
                 Json{{"model_type", "llava"}, {"text_config", config("llama")}},
                 {{"model.vision_tower.encoder.layers.0.mlp.fc1.weight", {48, 32}, -1, {}},
                  {"model.visual.blocks.0.attn.qkv.bias", {96}, -1, {}}}});
  all.push_back({"internlm2",
                 config("internlm2"),
                 {{"model.layers.0.attention.wqkv.weight", {128, 64}, 0, second_half(128)},
                  {"model.layers.0.attention.wo.weight", {64, 64}, 1, second_half(64)},
                  {"model.layers.0.feed_forward.w3.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.0.ffn_norm.weight", {64}, -1, {}},
                  {"output.weight", {160, 64}, 0, second_half(160)}}});
  all.push_back({"baichuan",
                 with(config("baichuan"), {{"num_key_value_heads", nullptr}}),
                 {{"model.layers.0.self_attn.W_pack.weight", {192, 64}, 0, halves({64, 64, 64})}}});
  all.push_back({"qwen",
                 with(config("qwen"), {{"num_key_value_heads", nullptr}, {"intermediate_size", 192}}),
                 {{"transformer.h.0.attn.c_attn.weight", {192, 64}, 0, halves({64, 64, 64})},
                  {"transformer.h.0.mlp.w1.weight", {96, 64}, 0, second_half(96)},
                  {"transformer.h.0.mlp.c_proj.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"mpt",
                 Json{{"model_type", "mpt"}, {"d_model", 64}, {"n_heads", 8}, {"n_layers", 2}, {"expansion_ratio", 4}},
                 {{"transformer.blocks.0.attn.Wqkv.weight", {192, 64}, 0, halves({64, 64, 64})},
                  {"transformer.blocks.0.ffn.up_proj.weight", {256, 64}, 0, second_half(256)},
                  {"transformer.blocks.0.ffn.down_proj.weight", {64, 256}, 1, second_half(256)},
                  {"transformer.blocks.0.norm_1.weight", {64}, -1, {}}}});
  all.push_back(
      {"llama4",
       Json{{"model_type", "llama4"}, {"text_config", with(config("llama4_text"), {{"num_local_experts", 4}})}},
       {{"language_model.model.layers.0.feed_forward.experts.gate_up_proj", {4, 64, 192}, 2, halves({96, 96})},
        {"language_model.model.layers.0.feed_forward.experts.down_proj", {4, 96, 64}, 1, second_half(96)},
        {"language_model.model.layers.0.feed_forward.router.weight", {4, 64}, -1, {}}}});
  all.push_back({"megatron",
                 config("llama"),
                 {{"embedding.word_embeddings.weight", {160, 64}, 0, second_half(160)},
                  {"output_layer.weight", {160, 64}, 0, second_half(160)},
                  {"decoder.layers.0.self_attention.linear_qkv.weight", {128, 64}, 0, second_half(128)},
                  {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", {64}, -1, {}},
                  {"decoder.layers.0.self_attention.linear_proj.weight", {64, 64}, 1, second_half(64)},
                  {"decoder.layers.0.mlp.linear_fc1.weight", {192, 64}, 0, halves({96, 96})},
                  {"decoder.layers.0.mlp.linear_fc2.weight", {64, 96}, 1, second_half(96)},
                  {"decoder.final_layernorm.weight", {64}, -1, {}}}});
  all.push_back({"megatron_legacy",
                 with(config("llama"), {{"swiglu", true}}),
                 {{"language_model.encoder.layers.0.mlp.dense_h_to_4h.weight", {192, 64}, 0, halves({96, 96})},
                  {"language_model.encoder.layers.0.mlp.dense_4h_to_h.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"megatron_experts",
                 with(config("llama"), {{"num_moe_experts", 4}, {"moe_ffn_hidden_size", 48}}),
                 {{"decoder.layers.0.mlp.router.expert_bias", {4}, -1, {}},
                  {"decoder.layers.0.mlp.experts.linear_fc1.weight3", {96, 64}, 0, halves({48, 48})},
                  {"decoder.layers.0.mlp.experts.linear_fc2.weight3", {64, 48}, 1, second_half(48)},
                  {"decoder.layers.0.mlp.shared_experts.gate_weight", {1, 64}, -1, {}}}});
  all.push_back({"megatron_latent",
                 with(config("llama"), {{"kv_lora_rank", 16},
                                        {"q_lora_rank", 24},
                                        {"qk_head_dim", 8},
                                        {"qk_pos_emb_head_dim", 4},
                                        {"v_head_dim", 6}}),
                 {{"decoder.layers.0.self_attention.linear_q_down_proj.weight", {24, 64}, -1, {}},
                  {"decoder.layers.0.self_attention.linear_q_up_proj.weight", {96, 24}, 0, second_half(96)},
                  {"decoder.layers.0.self_attention.linear_kv_up_proj.weight", {112, 16}, 0, second_half(112)},
                  {"decoder.layers.0.self_attention.linear_kv_up_proj.layer_norm_weight", {16}, -1, {}}}});
  all.push_back({"qwen3_next",
                 with(config("qwen3_next"), {{"linear_num_key_heads", 4},
                                             {"linear_num_value_heads", 8},
                                             {"linear_key_head_dim", 8},
                                             {"linear_value_head_dim", 8}}),
                 {{"model.layers.0.linear_attn.in_proj_qkvz.weight", {192, 64}, -1, {}},
                  {"model.layers.0.linear_attn.A_log", {8}, -1, {}},
                  {"model.layers.0.linear_attn.norm.weight", {8}, -1, {}},
                  {"model.layers.1.self_attn.q_proj.weight", {128, 64}, 0, second_half(128)}}});
  all.push_back({"granitemoe",
                 with(config("granitemoe"), {{"num_local_experts", 4}, {"shared_intermediate_size", 48}}),
                 {{"model.layers.0.block_sparse_moe.input_linear.weight", {4, 192, 64}, 1, halves({96, 96})},
                  {"model.layers.0.block_sparse_moe.output_linear.weight", {4, 64, 96}, 2, second_half(96)},
                  {"model.layers.0.block_sparse_moe.router.layer.weight", {4, 64}, -1, {}},
                  {"model.layers.0.shared_mlp.input_linear.weight", {96, 64}, 0, halves({48, 48})},
                  {"model.layers.0.shared_mlp.output_linear.weight", {64, 48}, 1, second_half(48)}}});
  all.push_back({"jamba",
                 with(config("jamba"), {{"mamba_expand", 2}, {"num_experts", 4}}),
                 {{"model.layers.0.mamba.in_proj.weight", {256, 64}, -1, {}},
                  {"model.layers.0.mamba.A_log", {128, 16}, -1, {}},
                  {"model.layers.0.feed_forward.up_proj.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.1.feed_forward.router.weight", {4, 64}, -1, {}},
                  {"model.layers.1.feed_forward.experts.3.down_proj.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"tensorrt_llm",
                 Json{{"architecture", "LlamaForCausalLM"},
                      {"hidden_size", 64},
                      {"num_attention_heads", 8},
                      {"num_key_value_heads", 4},
                      {"head_size", 8},
                      {"intermediate_size", 96},
                      {"vocab_size", 160}},
                 {{"transformer.vocab_embedding.weight", {160, 64}, 0, second_half(160)},
                  {"transformer.layers.0.attention.qkv.weight", {128, 64}, 0, halves({64, 32, 32})},
                  {"transformer.layers.0.attention.dense.weight", {64, 64}, 1, second_half(64)},
                  {"transformer.layers.0.mlp.fc.weight", {96, 64}, 0, second_half(96)},
                  {"transformer.layers.0.mlp.gate.weight", {96, 64}, 0, second_half(96)},
                  {"transformer.layers.0.mlp.proj.weight", {64, 96}, 1, second_half(96)},
                  {"transformer.layers.1.mlp.fc.weight", {4, 192, 64}, 1, halves({96, 96})},
                  {"transformer.layers.1.mlp.proj.weight", {4, 64, 96}, 2, second_half(96)},
                  {"transformer.layers.0.attention.kv_cache_scaling_factor", {1}, -1, {}},
                  {"transformer.ln_f.weight", {64}, -1, {}}}});
  return all;
}

class RuleArchitectures : public ::testing::TestWithParam<Architecture> {};

std::vector<WholeTensor> random_tensors(std::vector<Line> const& lines) {
  std::mt19937 random(7);
  std::vector<WholeTensor> tensors;
  for (auto const& line : lines) {
    bool const bytes = std::string_view(line.name).find("_proj_") != std::string_view::npos &&
                       std::string_view(line.name).find("bias") == std::string_view::npos;
    auto const dtype = bytes ? Dtype::u8 : line.shape.size() < 2 && line.shape.numel() == 1 ? Dtype::f32 : Dtype::bf16;
    tensors.push_back(random_tensor(line.name, dtype, line.shape, random));
  }
  return tensors;
}

TEST_P(RuleArchitectures, are_split_as_expected) {
  auto all = whole_set(random_tensors(GetParam().lines), GetParam().config, Json::object());
  auto const rule_set = RuleSet::make(all.set());
  for (auto const& line : GetParam().lines) {
    auto const rule = rule_set.split_for(line.name, *all.shards(line.name).front(), 2);
    EXPECT_EQ(rule.axis, line.axis) << line.name << ": " << rule.reason;
    if (line.axis < 0 || rule.axis < 0) continue;
    EXPECT_EQ(rule.ranks[1], line.rank1) << line.name << ": " << rule.reason;
  }
}

TEST_P(RuleArchitectures, are_merged_back_after_a_split) {
  EXPECT_EQ(round_trip(random_tensors(GetParam().lines), GetParam().config, 2), "");
}

std::string title(::testing::TestParamInfo<Architecture> const& info) { return info.param.title; }

INSTANTIATE_TEST_SUITE_P(All, RuleArchitectures, ::testing::ValuesIn(architectures()), title);
INSTANTIATE_TEST_SUITE_P(Families, RuleArchitectures, ::testing::ValuesIn(other_families()), title);

}  // namespace
}  // namespace crossrank::checkpoint::rule_architectures_test
