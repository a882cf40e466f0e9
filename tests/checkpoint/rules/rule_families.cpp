#include "tests/checkpoint/rules/rule_architectures.hpp"

namespace crossrank::checkpoint {

std::vector<Architecture> other_families() {
  std::vector<Architecture> all;
  // The config has key/value heads, but models of this type do not use them.
  all.push_back({"gpt_neox_with_stray_heads",
                 config("gpt_neox", "gelu"),
                 {{"gpt_neox.layers.0.attention.query_key_value.weight", {192, 64}, 0, second_half(192)},
                  {"gpt_neox.layers.0.attention.query_key_value.bias", {192}, 0, second_half(192)}}});
  all.push_back({"codegen",
                 Json{{"model_type", "codegen"}, {"n_embd", 64}, {"n_head", 8}, {"vocab_size", 160}},
                 {{"transformer.h.0.attn.qkv_proj.weight", {192, 64}, 0, second_half(192)},
                  {"transformer.h.0.attn.causal_mask", {1, 1, 8, 8}, -1, {}},
                  {"transformer.h.0.mlp.fc_in.weight", {256, 64}, 0, second_half(256)}}});
  all.push_back({"gpt_bigcode_with_all_heads",
                 Json{{"model_type", "gpt_bigcode"}, {"n_embd", 64}, {"n_head", 8}, {"multi_query", false}},
                 {{"transformer.h.0.attn.c_attn.weight", {192, 64}, 0, second_half(192)}}});
  all.push_back({"minimax",
                 config("minimax"),
                 {{"model.layers.0.self_attn.qkv_proj.weight", {192, 64}, 0, second_half(192)},
                  {"model.layers.0.self_attn.output_gate.weight", {64, 64}, 0, second_half(64)},
                  {"model.layers.0.self_attn.slope_rate", {8, 1, 1}, -1, {}}}});
  all.push_back({"recurrent_gemma",
                 with(config("recurrent_gemma", "gelu_pytorch_tanh"), {{"num_key_value_heads", 1}}),
                 {{"model.layers.0.temporal_block.linear_x.weight", {64, 64}, -1, {}},
                  {"model.layers.0.temporal_block.rg_lru.input_gate_weight", {8, 8, 8}, -1, {}},
                  {"model.layers.2.temporal_block.q_proj.weight", {64, 64}, 0, second_half(64)},
                  {"model.layers.2.mlp_block.up_proj.weight", {48, 64}, 0, second_half(48)}}});
  all.push_back({"doge",
                 config("doge"),
                 {{"model.layers.0.self_attn.A", {4}, -1, {}},
                  {"model.layers.0.self_attn.dt_proj.weight", {4, 32}, 1, second_half(32)}}});
  all.push_back({"axk2",
                 with(config("axk2"), {{"kv_lora_rank", 16}, {"qk_nope_head_dim", 16}, {"qk_rope_head_dim", 8}}),
                 {{"model.layers.0.input_layernorm.mlp.fc1.weight", {16, 64}, -1, {}},
                  {"model.layers.0.self_attn.q_gate_proj.weight", {160, 64}, 0, second_half(160)}}});
  all.push_back({"dbrx",
                 Json{{"model_type", "dbrx"},
                      {"d_model", 64},
                      {"n_heads", 8},
                      {"attn_config", {{"kv_n_heads", 4}}},
                      {"ffn_config", {{"ffn_hidden_size", 48}, {"moe_num_experts", 3}}}},
                 {{"transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", {128, 64}, 0, halves({64, 32, 32})},
                  {"transformer.blocks.0.ffn.experts.mlp.w1", {144, 64}, 0, halves({48, 48, 48})},
                  {"transformer.blocks.0.ffn.experts.mlp.w2", {144, 64}, 0, halves({48, 48, 48})},
                  {"transformer.blocks.0.ffn.router.layer.weight", {3, 64}, -1, {}}}});
  all.push_back(
      {"t5",
       Json{{"model_type", "t5"}, {"d_model", 64}, {"num_heads", 8}, {"d_kv", 16}, {"d_ff", 96}, {"vocab_size", 160}},
       {{"shared.weight", {160, 64}, 0, second_half(160)},
        {"decoder.block.0.layer.1.EncDecAttention.k.weight", {128, 64}, 0, second_half(128)},
        {"decoder.block.0.layer.1.EncDecAttention.o.weight", {64, 128}, 1, second_half(128)},
        {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {32, 8}, -1, {}},
        {"decoder.block.0.layer.2.DenseReluDense.wi_1.weight", {96, 64}, 0, second_half(96)},
        {"decoder.block.0.layer.2.DenseReluDense.wo.weight", {64, 96}, 1, second_half(96)}}});
  all.push_back({"bart",
                 Json{{"model_type", "bart"},
                      {"d_model", 64},
                      {"encoder_attention_heads", 8},
                      {"decoder_attention_heads", 8},
                      {"encoder_ffn_dim", 96},
                      {"decoder_ffn_dim", 96},
                      {"vocab_size", 160}},
                 {{"model.decoder.layers.0.encoder_attn.q_proj.bias", {64}, 0, second_half(64)},
                  {"model.decoder.layers.0.encoder_attn.out_proj.weight", {64, 64}, 1, second_half(64)},
                  {"model.encoder.layers.0.fc1.weight", {96, 64}, 0, second_half(96)},
                  {"model.encoder.layernorm_embedding.weight", {64}, -1, {}}}});
  all.push_back({"bert",
                 config("bert", "gelu"),
                 {{"bert.embeddings.LayerNorm.weight", {64}, -1, {}},
                  {"bert.encoder.layer.0.attention.self.query.weight", {64, 64}, 0, second_half(64)},
                  {"bert.encoder.layer.0.attention.output.dense.weight", {64, 64}, 1, second_half(64)},
                  {"bert.encoder.layer.0.intermediate.dense.weight", {96, 64}, 0, second_half(96)},
                  {"bert.encoder.layer.0.output.dense.weight", {64, 96}, 1, second_half(96)},
                  {"cls.predictions.bias", {160}, 0, second_half(160)},
                  {"cls.predictions.transform.dense.weight", {64, 64}, -1, {}}}});
  // The heads work in pairs that are half the width apart.
  all.push_back({"diffllama",
                 config("diffllama"),
                 {{"model.layers.0.self_attn.q_proj.weight", {64, 64}, -1, {}},
                  {"model.layers.0.self_attn.o_proj.weight", {64, 64}, -1, {}},
                  {"model.layers.0.self_attn.lambda_q1", {8}, -1, {}},
                  {"model.layers.0.mlp.up_proj.weight", {96, 64}, 0, second_half(96)}}});
  // Layers with full attention have longer heads.
  auto const gemma4 = with(config("gemma4_text", "gelu_pytorch_tanh"),
                           {{"layer_types", {"sliding_attention", "full_attention"}}, {"global_head_dim", 32}});
  auto const longer = Json{{"per_layer_config", {{"01", {{"head_dim", 32}}}}}};
  std::vector<Line> const layers_of_two_kinds{
      {"model.layers.0.self_attn.k_proj.weight", {32, 64}, 0, second_half(32)},
      {"model.layers.1.self_attn.q_proj.weight", {256, 64}, 0, second_half(256)},
      {"model.layers.1.self_attn.k_proj.weight", {128, 64}, 0, second_half(128)},
      {"model.layers.1.self_attn.o_proj.weight", {64, 256}, 1, second_half(256)},
      {"model.layers.1.layer_scalar", {1}, -1, {}}};
  all.push_back({"gemma4", gemma4, layers_of_two_kinds});
  all.push_back(
      {"gemma4_layer_by_layer", with(config("gemma4_text", "gelu_pytorch_tanh"), longer), layers_of_two_kinds});
  all.push_back({"mimo_v2_flash",
                 with(config("mimo_v2_flash"), {{"hybrid_layer_pattern", {0, 1}},
                                                {"head_dim", 16},
                                                {"v_head_dim", 8},
                                                {"swa_num_key_value_heads", 8},
                                                {"swa_head_dim", 16},
                                                {"swa_v_head_dim", 8}}),
                 {{"model.layers.0.self_attn.k_proj.weight", {64, 64}, 0, second_half(64)},
                  {"model.layers.0.self_attn.v_proj.weight", {32, 64}, 0, second_half(32)},
                  {"model.layers.0.self_attn.o_proj.weight", {64, 64}, 1, second_half(64)},
                  {"model.layers.1.self_attn.k_proj.weight", {128, 64}, 0, second_half(128)},
                  {"model.layers.1.self_attn.attention_sink_bias", {8}, 0, second_half(8)}}});
  all.push_back({"mimo_v2_flash_by_layer_types",
                 with(config("mimo_v2_flash"), {{"layer_types", {"full_attention", "sliding_attention"}}}),
                 {{"model.layers.0.self_attn.k_proj.weight", {32, 64}, 0, second_half(32)},
                  {"model.layers.1.self_attn.k_proj.weight", {64, 64}, 0, second_half(64)}}});
  all.push_back({"hrm_text",
                 config("hrm_text"),
                 {{"model.z_L_init", {64}, -1, {}},
                  {"model.H_module.layers.0.self_attn.gate_proj.weight", {64, 64}, 0, second_half(64)},
                  {"model.L_module.layers.1.mlp.gate_proj.weight", {96, 64}, 0, second_half(96)}}});
  all.push_back({"nemotron_h_experts",
                 with(config("nemotron_h", "relu2"), {{"n_routed_experts", 4}, {"moe_intermediate_size", 48}}),
                 {{"model.layers.1.mixer.experts.up_proj", {4, 48, 64}, 1, second_half(48)},
                  {"model.layers.1.mixer.experts.down_proj", {4, 64, 48}, 2, second_half(48)},
                  {"model.layers.1.mixer.fc1_latent_proj.weight", {32, 64}, -1, {}}}});
  all.push_back({"nemotron_h_omni",
                 Json{{"model_type", "nemotron_h_omni"}, {"text_config", config("nemotron_h", "relu2")}},
                 {{"language_model.model.embeddings.weight", {160, 64}, 0, second_half(160)}}});
  all.push_back({"unlimited_ocr", config("unlimited_ocr"), {{"model.view_separator", {64}, -1, {}}}});
  all.push_back({"laguna",
                 with(config("laguna"), {{"head_dim", 8}, {"num_attention_heads_per_layer", {8, 12}}}),
                 {{"model.layers.0.self_attn.q_proj.weight", {64, 64}, 0, second_half(64)},
                  {"model.layers.0.self_attn.g_proj.weight", {8, 64}, 0, second_half(8)},
                  {"model.layers.1.self_attn.q_proj.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.1.self_attn.g_proj.weight", {12, 64}, 0, second_half(12)},
                  {"model.layers.1.self_attn.k_proj.weight", {32, 64}, 0, second_half(32)},
                  {"model.layers.1.self_attn.o_proj.weight", {64, 96}, 1, second_half(96)}}});
  // The config does not have this length; equal values show that the shards are replicas.
  all.push_back({"olmo_hybrid",
                 with(config("olmo_hybrid"), {{"linear_num_key_heads", 2}, {"linear_key_head_dim", 16}}),
                 {{"model.layers.0.linear_attn.k_conv1d.weight", {43, 1, 4}, -1, {}},
                  {"model.layers.0.linear_attn.q_proj.weight", {32, 64}, -1, {}}}});
  all.push_back({"longcat_flash",
                 with(config("longcat_flash"), {{"kv_lora_rank", 16},
                                                {"q_lora_rank", 24},
                                                {"qk_nope_head_dim", 8},
                                                {"qk_rope_head_dim", 4},
                                                {"v_head_dim", 6},
                                                {"expert_ffn_hidden_size", 48}}),
                 {{"model.layers.0.self_attn.1.q_b_proj.weight", {96, 24}, 0, second_half(96)},
                  {"model.layers.0.self_attn.1.kv_b_proj.weight", {112, 16}, 0, second_half(112)},
                  {"model.layers.0.self_attn.0.o_proj.weight", {64, 48}, 1, second_half(48)},
                  {"model.layers.0.mlps.0.gate_proj.weight", {96, 64}, 0, second_half(96)},
                  {"model.layers.0.mlp.experts.3.down_proj.weight", {64, 48}, 1, second_half(48)},
                  {"model.layers.0.mlp.router.classifier.weight", {4, 64}, -1, {}},
                  {"model.layers.0.input_layernorm.1.weight", {64}, -1, {}}}});
  return all;
}

}  // namespace crossrank::checkpoint
