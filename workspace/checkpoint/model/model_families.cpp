#include "workspace/checkpoint/model/model_families.hpp"

#include <array>

namespace crossrank::checkpoint {
namespace {

// Names that transformers writes, and stacks of experts, which it also reads.
constexpr std::string_view llama_top = "model.embed_tokens model.norm";

constexpr std::array<ModelFamily, 29> families{{
    {"llama mistral ministral ministral3 granite helium seed_oss internlm3", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj", "lm_head"},
    {"qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj", "lm_head", false,
     "self_attn.{q,k,v}_proj", "attention_bias qkv_bias"},
    {"stablelm", "model.layers.", llama_top,
     "input_layernorm; ? post_attention_layernorm; self_attn.{q,k,v,o}_proj; ? self_attn.{q,k}_layernorm.norms.*; "
     "mlp.{gate,up,down}_proj",
     "lm_head"},
    {"qwen3 qwen3_vl_text", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj self_attn.{q,k}_norm; mlp.{gate,up,down}_proj",
     "lm_head"},
    {"gemma smollm3 ernie4_5", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj", "lm_head", true},
    {"gemma2", "model.layers.", llama_top,
     "{input,post_attention,pre_feedforward,post_feedforward}_layernorm; self_attn.{q,k,v,o}_proj; "
     "mlp.{gate,up,down}_proj",
     "lm_head", true},
    {"gemma3_text", "model.layers.", llama_top,
     "{input,post_attention,pre_feedforward,post_feedforward}_layernorm; self_attn.{q,k,v,o}_proj "
     "self_attn.{q,k}_norm; mlp.{gate,up,down}_proj",
     "lm_head", true},
    {"phi", "model.layers.", "model.embed_tokens model.final_layernorm",
     "input_layernorm; self_attn.{q_proj,k_proj,v_proj,dense}; ? self_attn.{q,k}_layernorm; mlp.{fc1,fc2}", "lm_head",
     false, "input_layernorm self_attn.{q_proj,k_proj,v_proj,dense} mlp.{fc1,fc2}"},
    {"phi3", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{qkv,o}_proj; mlp.{gate_up,down}_proj", "lm_head"},
    {"mixtral phimoe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; "
     "block_sparse_moe.gate block_sparse_moe.experts.*.{w1,w2,w3} | mlp.gate mlp.experts.{gate_up,down}_proj",
     "lm_head"},
    {"qwen2_moe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj mlp.shared_expert.{gate,up,down}_proj mlp.shared_expert_gate | "
     "mlp.gate mlp.experts.{gate_up,down}_proj mlp.shared_expert.{gate,up,down}_proj mlp.shared_expert_gate",
     "lm_head", false, "self_attn.{q,k,v}_proj", "attention_bias qkv_bias"},
    {"qwen3_moe qwen3_vl_moe_text", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj self_attn.{q,k}_norm; mlp.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj | mlp.gate mlp.experts.{gate_up,down}_proj",
     "lm_head"},
    {"olmoe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj self_attn.{q,k}_norm; "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj | mlp.gate mlp.experts.{gate_up,down}_proj",
     "lm_head"},
    {"deepseek_v2 deepseek_v3", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; "
     "self_attn.q_proj | self_attn.{q_a_proj,q_a_layernorm,q_b_proj}; "
     "self_attn.{kv_a_layernorm,kv_a_proj_with_mqa,kv_b_proj,o_proj}; mlp.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj mlp.shared_experts.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.{gate_up,down}_proj mlp.shared_experts.{gate,up,down}_proj; "
     "? mlp.gate.e_score_correction_bias",
     "lm_head"},
    {"glm4_moe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; ? self_attn.{q,k}_norm; mlp.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj mlp.shared_experts.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.{gate_up,down}_proj mlp.shared_experts.{gate,up,down}_proj; "
     "? mlp.gate.e_score_correction_bias",
     "lm_head"},
    {"cohere cohere2", "model.layers.", llama_top,
     "input_layernorm; self_attn.{q,k,v,o}_proj; ? self_attn.{q,k}_norm; mlp.{gate,up,down}_proj", "lm_head", true},
    {"starcoder2", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{c_fc,c_proj}", "lm_head", true,
     "self_attn.{q,k,v,o}_proj mlp.{c_fc,c_proj}", "use_bias"},
    {"granitemoe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; "
     "block_sparse_moe.{input_linear,output_linear,router.layer}",
     "lm_head"},
    {"olmo", "model.layers.", "model.embed_tokens", "self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj", "lm_head"},
    {"olmo2 olmo3 exaone4", "model.layers.", llama_top,
     "{post_attention,post_feedforward}_layernorm; self_attn.{q,k,v,o}_proj self_attn.{q,k}_norm; "
     "mlp.{gate,up,down}_proj",
     "lm_head"},
    {"gpt_neox", "gpt_neox.layers.", "gpt_neox.embed_in gpt_neox.final_layer_norm",
     "{input,post_attention}_layernorm; attention.{dense,query_key_value}; mlp.{dense_h_to_4h,dense_4h_to_h}; "
     "? attention.bias; ? attention.masked_bias",
     "embed_out", false, "attention.{dense,query_key_value} mlp.{dense_h_to_4h,dense_4h_to_h}", "attention_bias"},
    {"glm", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate_up,down}_proj", "lm_head"},
    {"glm4", "model.layers.", llama_top,
     "{input,post_attention,post_mlp,post_self_attn}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate_up,down}_proj",
     "lm_head"},
    {"gpt_oss", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj self_attn.sinks; "
     "mlp.router mlp.experts.{gate_up,down}_proj",
     "lm_head"},
    {"arcee", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{up,down}_proj", "lm_head"},
    {"minimax_m2", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; ? self_attn.{q,k}_norm; "
     "block_sparse_moe.gate block_sparse_moe.experts.*.{w1,w2,w3} | mlp.gate mlp.experts.{gate_up,down}_proj; "
     "? block_sparse_moe.e_score_correction_bias; ? mlp.e_score_correction_bias",
     "lm_head"},
    {"llama4_text", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; feed_forward.{gate,up,down}_proj | "
     "feed_forward.router feed_forward.experts.{gate_up,down}_proj feed_forward.shared_expert.{gate,up,down}_proj",
     "lm_head"},
    {"bitnet", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj self_attn.attn_sub_norm; "
     "mlp.{gate,up,down}_proj mlp.ffn_sub_norm",
     "lm_head", true},
    {"ernie4_5_moe", "model.layers.", llama_top,
     "{input,post_attention}_layernorm; self_attn.{q,k,v,o}_proj; mlp.{gate,up,down}_proj | "
     "mlp.gate mlp.experts.*.{gate,up,down}_proj | mlp.gate mlp.experts.{gate_up,down}_proj; "
     "? mlp.shared_experts.{gate,up,down}_proj; ? mlp.moe_statics.e_score_correction_bias",
     "lm_head", true},
}};

}  // namespace

std::span<ModelFamily const> model_families() noexcept { return families; }

}  // namespace crossrank::checkpoint
