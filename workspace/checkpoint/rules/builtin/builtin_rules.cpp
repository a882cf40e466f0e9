#include "workspace/checkpoint/rules/builtin/builtin_rules.hpp"

#include <utility>

#include "workspace/checkpoint/rules/builtin/encoder_rules.hpp"
#include "workspace/checkpoint/rules/builtin/mixer_rules.hpp"
#include "workspace/checkpoint/rules/builtin/rule_builders.hpp"
#include "workspace/checkpoint/rules/towers.hpp"

namespace crossrank::checkpoint {
namespace {

using namespace rules;

/// Adds gates and sinks of attention heads.
void add_gates_of_attention(Rules& rules) {
  rules.push_back(column("**.self_attn.{sinks,attention_sink_bias,softmax_offset}", {SizeName::heads}));
  rules.push_back(
      only({"afmoe", "muse_glimmer_text", "beam", "hrm_text"}, column("**.self_attn.gate_proj", {SizeName::query})));
  rules.push_back(only({"lfm3", "lfm3_text"}, column("**.self_attn.gate_proj", {SizeName::heads})));
  rules.push_back(column("**.self_attn.g_proj", {SizeName::heads}));
  rules.push_back(only({"beam"}, column("**.self_attn.gate_bias", {SizeName::heads})));
}

/// Adds experts of model families with special stacks.
void add_special_experts(Rules& rules) {
  auto const ffn = SizeName::expert_ffn;
  // Gate and up alternate, so sharding as one block shards both.
  rules.push_back(only({"gpt_oss"}, stacked(grouped(column("**.experts.gate_up_proj", {ffn, ffn})), true)));
  rules.push_back(only({"gpt_oss"}, stacked(row("**.experts.down_proj", ffn), true)));
  rules.push_back(only({"gpt_oss"}, stacked(grouped(column("**.experts.w13", {ffn, ffn})))));
  rules.push_back(only({"llama4_text", "llama4"}, stacked(column("**.experts.gate_up_proj", {ffn, ffn}), true)));
  rules.push_back(only({"llama4_text", "llama4"}, stacked(row("**.experts.down_proj", ffn), true)));
  rules.push_back(only({"aria_text", "aria"}, stacked(column("**.experts.fc1", {ffn, ffn}), true)));
  rules.push_back(only({"aria_text", "aria"}, stacked(row("**.experts.fc2", ffn), true)));
  // Experts without a gate.
  rules.push_back(only({"nemotron_h"}, stacked(column("**.experts.up_proj", {ffn}))));
  // The rows of all experts follow each other; the last matrix is stored [in, out].
  rules.push_back(only({"dbrx"}, repeated(SizeName::experts, column("**.experts.mlp.{w1,v1,w2}", {ffn}))));
}

/// Adds layers of vision towers that are sharded although the tower's config does not have their sizes.
void add_special_towers(Rules& rules) {
  auto const* const llama4 = "llama4_text";
  rules.push_back(only({llama4}, column("**.vision_adapter.mlp.fc1", {})));
  rules.push_back(only({llama4}, by_name(row("**.vision_adapter.mlp.fc2", SizeName::ffn))));
  rules.push_back(only({llama4}, column("**.patch_embedding.linear", {})));
  rules.push_back(only({llama4}, column("**.multi_modal_projector.linear_1", {})));
  auto const* const muse = "muse_glimmer_text";
  rules.push_back(only({muse}, column("**.vision_adapter.fc1", {})));
  rules.push_back(only({muse}, by_name(row("**.vision_adapter.fc2", SizeName::ffn))));
  rules.push_back(only({muse}, column("**.{vision_projection,patch_embedding}", {})));
  rules.push_back(only({muse}, row("**.vision_tower.layers.*.attn.proj", SizeName::value)));
}

/// Adds layers of GPT-2, of its descendants, and of models that use its names.
void add_special_gpt(Rules& rules) {
  auto const q = SizeName::query;
  auto const kv = SizeName::key_value;
  // The config counts gate and up together.
  rules.push_back(only({"qwen"}, column("**.attn.c_attn", {q, kv, kv})));
  rules.push_back(only({"qwen"}, column("**.mlp.{w1,w2}", {})));
  rules.push_back(only({"qwen"}, by_name(row("**.mlp.c_proj", SizeName::ffn))));
  // Conv1D of GPT-2 stores [in, out].
  for (auto const* model : {"gpt2", "openai-gpt"}) {
    rules.push_back(only({model}, transposed(column("**.attn.c_attn", {q, kv, kv}))));
    rules.push_back(only({model}, transposed(row("**.attn.c_proj", SizeName::value))));
    rules.push_back(only({model}, transposed(column("**.mlp.c_fc", {SizeName::ffn}))));
    rules.push_back(only({model}, transposed(row("**.mlp.c_proj", SizeName::ffn))));
  }
  rules.push_back(only({"gpt_bigcode"}, column("**.attn.c_attn", {q, kv, kv})));
  // The parts alternate per head, whatever the config says about key/value heads.
  rules.push_back(only({"gpt_bigcode_multi_head"}, in_groups(SizeName::heads, column("**.attn.c_attn", {q, q, q}))));
  rules.push_back(
      only({"gpt_neox", "gpt_neox_japanese", "bloom", "persimmon"},
           in_groups(SizeName::heads, column("**.{attention,self_attention,self_attn}.query_key_value", {q, q, q}))));
}

/// Adds layers whose names have a special meaning in one model family. They come before the general rules.
void add_special(Rules& rules) {
  auto const q = SizeName::query;
  auto const kv = SizeName::key_value;
  add_special_gpt(rules);
  rules.push_back(only({"minimax"}, in_groups(SizeName::heads, column("**.self_attn.qkv_proj", {q, q, q}))));
  rules.push_back(only({"minimax"}, column("**.self_attn.output_gate", {q})));
  // Each layer has two attentions and two feed-forward blocks.
  rules.push_back(only({"longcat_flash"}, row("**.self_attn.*.o_proj", SizeName::value)));
  rules.push_back(only({"longcat_flash"}, column("**.mlps.*.{gate_proj,up_proj}", {SizeName::ffn})));
  rules.push_back(only({"longcat_flash"}, row("**.mlps.*.down_proj", SizeName::ffn)));
  // Four groups of queries, values and keys each, as in training.
  rules.push_back(only({"codegen"}, in_groups(std::int64_t{4}, column("**.attn.qkv_proj", {q, q, q}))));
  rules.push_back(only({"chatglm"}, column("**.self_attention.query_key_value", {q, kv, kv})));
  rules.push_back(only({"chatglm"}, column("**.mlp.dense_h_to_4h", {SizeName::ffn, SizeName::ffn})));
  // Queries and their gates alternate per head.
  rules.push_back(
      only({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}, column("**.self_attn.q_proj", {SizeName::gated_query})));
  // All layers are called mixers.
  rules.push_back(only({"nemotron_h"}, column("**.mixer.q_proj", {q})));
  rules.push_back(only({"nemotron_h"}, column("**.mixer.{k_proj,v_proj}", {kv})));
  rules.push_back(only({"nemotron_h"}, row("**.mixer.o_proj", SizeName::value)));
  rules.push_back(only({"nemotron_h"}, column("**.mixer.up_proj", {SizeName::ffn})));
  rules.push_back(only({"nemotron_h"}, row("**.mixer.down_proj", SizeName::ffn)));
  rules.push_back(only({"nemotron_h"}, replicate("**.mixer.{fc1_latent_proj,fc2_latent_proj}")));
  // Small layers inside the norms; queries and their gates alternate per head.
  rules.push_back(only({"axk2"}, replicate("**.*layernorm.mlp.*")));
  rules.push_back(only({"axk2"}, column("**.self_attn.q_gate_proj", {})));
  // The heads form pairs at a distance of half the width.
  for (auto rule : {column("**.self_attn.q_proj", {q}), column("**.self_attn.{k_proj,v_proj}", {kv}),
                    row("**.self_attn.o_proj", SizeName::value)}) {
    rules.push_back(only({"diffllama"}, replicated_when_split(std::move(rule))));
  }
  // These cover the whole width, so shards may hold a slice; a split leaves them whole.
  for (auto const& [name, width] : {std::pair("**.self_attn.q_norm", q), std::pair("**.self_attn.k_norm", kv)}) {
    rules.push_back(
        only({"olmo2", "olmo3", "olmoe", "flex_olmo", "minimax_m2"}, replicated_when_split(column(name, {width}))));
  }
  add_gates_of_attention(rules);
  add_special_towers(rules);
}

void add_attention(Rules& rules) {
  auto const q = SizeName::query;
  auto const kv = SizeName::key_value;
  rules.push_back(column("**.{self_attn,attn,attention,self_attention}.q_proj", {q}));
  rules.push_back(column("**.{self_attn,attn,attention,self_attention}.k_proj", {kv}));
  rules.push_back(column("**.{self_attn,attn,attention,self_attention}.v_proj", {SizeName::kv_values}));
  rules.push_back(column("**.attention.wq", {q}));
  rules.push_back(column("**.attention.{wk,wv}", {kv}));
  rules.push_back(row("**.attention.wo", SizeName::value));
  rules.push_back(row("**.{self_attn,attn,attention,self_attention}.{o_proj,out_proj,dense}", SizeName::value));
  rules.push_back(row("**.attn.c_proj", SizeName::value));
  rules.push_back(column("**.{self_attn,attention}.{qkv_proj,qkv,W_pack}", {q, kv, kv}));
  rules.push_back(column("**.attn.Wqkv", {q, kv, kv}));
  rules.push_back(grouped(column("**.attention.wqkv", {q, kv, kv})));
  // Megatron and its derivatives store the queries of a key/value head next to it, so a rank has whole groups.
  rules.push_back(grouped(column("**.self_attention.linear_qkv", {q, kv, kv})));
  // Only ChatGLM has this name, and it stores all queries first.
  rules.push_back(column("transformer.encoder.layers.*.self_attention.query_key_value", {q, kv, kv}));
  rules.push_back(grouped(column("**.{attention,self_attention,self_attn}.query_key_value", {q, kv, kv})));
  rules.push_back(row("**.self_attention.linear_proj", SizeName::value));
  // Latent attention: projections into the latent are replicated, projections out of it are sharded by heads.
  rules.push_back(replicate("**.self_attn.**.{q_a_proj,kv_a_proj_with_mqa,q_a_layernorm,kv_a_layernorm}"));
  // vLLM joins two of them. Every rank has both.
  rules.push_back(replicated_when_split(column("**.self_attn.fused_qkv_a_proj", {SizeName::q_a, SizeName::kv_a})));
  rules.push_back(column("**.self_attn.**.q_b_proj", {q}));
  rules.push_back(column("**.self_attn.**.kv_b_proj", {SizeName::latent_kv}));
  rules.push_back(replicate("**.self_attention.{linear_q_down_proj,linear_kv_down_proj}"));
  rules.push_back(column("**.self_attention.linear_q_proj", {q}));
  rules.push_back(column("**.self_attention.linear_kv_up_proj", {SizeName::latent_kv}));
  rules.push_back(column("**.self_attention.linear_q_up_proj", {q}));
}

void add_experts(Rules& rules) {
  auto const ffn = SizeName::expert_ffn;
  rules.push_back(column("**.{experts,deepspeed_experts}.*.{w1,w3,gate_proj,up_proj}", {ffn}));
  rules.push_back(row("**.{experts,deepspeed_experts}.*.{w2,down_proj}", ffn));
  rules.push_back(column("**.{shared_expert,shared_experts,share_expert}.{gate_proj,up_proj}", {SizeName::shared_ffn}));
  rules.push_back(column("**.{shared_expert,shared_experts,share_expert}.gate_up_proj",
                         {SizeName::shared_ffn, SizeName::shared_ffn}));
  rules.push_back(row("**.{shared_expert,shared_experts,share_expert}.down_proj", SizeName::shared_ffn));
  rules.push_back(gated(column("**.shared_experts.linear_fc1", {SizeName::shared_ffn})));
  rules.push_back(row("**.shared_experts.linear_fc2", SizeName::shared_ffn));
  rules.push_back(gated(column("**.experts.local_experts.*.linear_fc1", {ffn})));
  rules.push_back(row("**.experts.local_experts.*.linear_fc2", ffn));
  rules.push_back(gated(column("**.experts.linear_fc1.{weight*,bias*}", {ffn})));
  rules.push_back(row("**.experts.linear_fc2.{weight*,bias*}", ffn));
  rules.push_back(stacked(column("**.experts.gate_up_proj", {ffn, ffn})));
  rules.push_back(stacked(row("**.experts.down_proj", ffn)));
  // The same layers under vLLM's names.
  rules.push_back(stacked(column("**.experts.w13", {ffn, ffn})));
  rules.push_back(stacked(row("**.experts.w2", ffn)));
  rules.push_back(stacked(column("**.moe.{gate_proj,up_proj}", {ffn})));
  rules.push_back(stacked(row("**.moe.down_proj", ffn)));
  rules.push_back(gated(column("**.deepspeed_experts.*.dense_h_to_4h", {ffn})));
  rules.push_back(row("**.deepspeed_experts.*.dense_4h_to_h", ffn));
  rules.push_back(replicate("**.deepspeed_moe.gate.wg"));
  rules.push_back(stacked(column("**.block_sparse_moe.input_linear", {ffn, ffn})));
  rules.push_back(stacked(row("**.block_sparse_moe.output_linear", ffn)));
  rules.push_back(column("**.shared_mlp.input_linear", {SizeName::shared_ffn, SizeName::shared_ffn}));
  rules.push_back(row("**.shared_mlp.output_linear", SizeName::shared_ffn));
  rules.push_back(column("**.shared_mlp.{gate_proj,up_proj}", {}));
  rules.push_back(by_name(row("**.shared_mlp.down_proj", SizeName::shared_ffn)));
  rules.push_back(replicate("**.mlp.moe_statics.e_score_correction_bias"));
  rules.push_back(replicate("**.mlp.gate.wg"));
  rules.push_back(replicate("**.router.layer"));
  rules.push_back(replicate("**.block_sparse_moe.gate"));
  rules.push_back(replicate("**.mlp.{router,shared_expert_gate}"));
  rules.push_back(replicate("**.mlp.gate.e_score_correction_bias"));
  rules.push_back(replicate("**.mlp.router.{expert_bias,local_tokens_per_expert}"));
  rules.push_back(replicate("**.shared_experts.gate_weight"));
  rules.push_back(replicate("**.feed_forward.router"));
}

void add_feed_forward(Rules& rules) {
  auto const ffn = SizeName::ffn;
  // TensorRT-LLM calls this layer a gate; in other programs a gate is the router.
  rules.push_back(column("transformer.layers.*.mlp.gate", {ffn}));
  rules.push_back(stacked(column("transformer.layers.*.mlp.fc", {SizeName::expert_ffn, SizeName::expert_ffn})));
  rules.push_back(stacked(row("transformer.layers.*.mlp.proj", SizeName::expert_ffn)));
  rules.push_back(column("transformer.layers.*.mlp.fc", {ffn}));
  rules.push_back(row("transformer.layers.*.mlp.proj", ffn));
  rules.push_back(replicate("**.mlp.gate"));
  rules.push_back(column("**.{mlp,feed_forward}.{gate_proj,up_proj}", {ffn}));
  rules.push_back(row("**.{mlp,feed_forward}.down_proj", ffn));
  rules.push_back(column("**.{mlp,feed_forward}.gate_up_proj", {ffn, ffn}));
  // Megatron fuses gate and up in this layer.
  rules.push_back(gated(column("**.{encoder,transformer}.layers.*.mlp.dense_h_to_4h", {ffn})));
  rules.push_back(column("**.mlp.{fc1,c_fc,fc_in,dense_h_to_4h}", {ffn}));
  rules.push_back(row("**.mlp.{fc2,c_proj,fc_out,dense_4h_to_h}", ffn));
  rules.push_back(column("**.layers.*.fc1", {ffn}));
  rules.push_back(row("**.layers.*.fc2", ffn));
  rules.push_back(column("**.feed_forward.{w1,w3}", {ffn}));
  rules.push_back(row("**.feed_forward.w2", ffn));
  rules.push_back(gated(column("**.mlp.linear_fc1", {ffn})));
  rules.push_back(row("**.mlp.linear_fc2", ffn));
  rules.push_back(column("**.ffn.up_proj", {ffn}));
  rules.push_back(row("**.ffn.down_proj", ffn));
}

void add_outside_of_layers(Rules& rules) {
  rules.push_back(replicate("**.{*norm,*layernorm,*layer_norm,*_norm*,ln_*,*_ln,norm1,norm2,norm_*}"));
  rules.push_back(replicate("**.layer_norm_{weight,bias}"));
  rules.push_back(replicate("**.{rotary_emb,rotary_pos_emb}.inv_freq"));
  rules.push_back(replicate("**.rope.freqs"));
  rules.push_back(replicate("**.{wpe,position_embedding,position_embeddings,embed_positions,rel_attn_table}"));
  rules.push_back(replicate("**.{attn,attention}.{bias,masked_bias,causal_mask,rotary_emb}"));
  rules.push_back(
      vocabulary("**.{embed_tokens,tokens_embed,embed_in,wte,word_embeddings,tok_embeddings,vocab_embedding,lm_head,"
                 "embed_out,output_layer}"));
  rules.push_back(vocabulary("output"));
  rules.push_back(vocabulary("{backbone,model}.embeddings"));
  rules.push_back(only({"nemotron_h"}, vocabulary("language_model.{backbone,model}.embeddings")));
}

/// Adds layers that every rank needs whole: routers, indexers, scalars of layers.
void add_small_ones(Rules& rules) {
  rules.push_back(replicate("**.{e_score_correction_bias,e_score_correction,expert_bias,router_bias}"));
  rules.push_back(replicate("**.{router,indexer,ada_rms_norm,altup,laurel,act_fn}.**"));
  rules.push_back(replicate("**.{mixer,feed_forward,moe}.gate"));
  rules.push_back(replicate("**.gate.global_scale"));
  rules.push_back(replicate("**.{*layernorm,*norm}.*"));
  rules.push_back(replicate("**.{layer_scalar,input_residual,post_attention_residual,dense_bias,eoi_embedding}"));
  rules.push_back(replicate("**.{lambda_k1,lambda_k2,lambda_q1,lambda_q2,positions_embed}"));
  rules.push_back(replicate("**.{cross_attn_attn_gate,cross_attn_mlp_gate,view_separator}"));
  rules.push_back(replicate("**.{embed_tokens_per_layer,per_layer_*}"));
  rules.push_back(replicate("**.{query_tokens,alpha_cross_attn,alpha_dense,embed_global}"));
  rules.push_back(only({"minimax"}, replicate("**.self_attn.{slope_rate,query_decay,key_decay,diagonal_decay}")));
  rules.push_back(only({"hrm_text"}, replicate("**.{z_H_init,z_L_init}")));
  rules.push_back(only({"doge"}, replicate("**.self_attn.A")));
  rules.push_back(only({"doge"}, row("**.self_attn.dt_proj", SizeName::key_value)));
  rules.push_back(only({"recurrent_gemma"}, replicate("**.temporal_block.{linear_x,linear_y,linear_out,conv_1d}")));
  rules.push_back(only({"recurrent_gemma"}, replicate("**.temporal_block.rg_lru.**")));
  rules.push_back(only({"recurrent_gemma"}, column("**.temporal_block.q_proj", {SizeName::query})));
  rules.push_back(only({"recurrent_gemma"}, column("**.temporal_block.{k_proj,v_proj}", {SizeName::key_value})));
  rules.push_back(only({"recurrent_gemma"}, row("**.temporal_block.o_proj", SizeName::value)));
  rules.push_back(only({"recurrent_gemma"}, column("**.mlp_block.{gate_proj,up_proj}", {})));
  rules.push_back(only({"recurrent_gemma"}, by_name(row("**.mlp_block.down_proj", SizeName::ffn))));
}

}  // namespace

std::vector<LayerRule> builtin_rules() {
  Rules all;
  add_special(all);
  add_special_experts(all);
  for (auto& rule : mixer_rules()) all.push_back(std::move(rule));
  add_attention(all);
  add_experts(all);
  add_feed_forward(all);
  add_outside_of_layers(all);
  for (auto& rule : encoder_rules()) all.push_back(std::move(rule));
  add_small_ones(all);
  for (auto const pattern : tower_patterns()) all.push_back(replicate(pattern));
  return all;
}

}  // namespace crossrank::checkpoint
