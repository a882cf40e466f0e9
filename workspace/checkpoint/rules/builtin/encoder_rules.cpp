#include "workspace/checkpoint/rules/builtin/encoder_rules.hpp"

#include <string>

#include "workspace/checkpoint/rules/builtin/rule_builders.hpp"

namespace crossrank::checkpoint {
namespace {

using namespace rules;

void add_bart(Rules& all) {
  all.push_back(column("**.{encoder_attn,cross_attn,cross_attention}.q_proj", {SizeName::query}));
  all.push_back(column("**.{encoder_attn,cross_attn,cross_attention}.{k_proj,v_proj}", {SizeName::key_value}));
  all.push_back(row("**.{encoder_attn,cross_attn,cross_attention}.{o_proj,out_proj}", SizeName::value));
  all.push_back(column("**.ffn.fc1", {SizeName::ffn}));
  all.push_back(row("**.ffn.fc2", SizeName::ffn));
  all.push_back(column("**.experts.*.fc1", {SizeName::ffn}));
  all.push_back(row("**.experts.*.fc2", SizeName::ffn));
  all.push_back(vocabulary("**.{shared,output_projection,generator_lm_head}"));
  // The convolutions over the sound, which every rank has whole.
  all.push_back(only({"whisper"}, replicate("**.encoder.{conv1,conv2}")));
  // A separate bias for each token.
  all.push_back(replicate("**.final_logits_bias"));
}

void add_t5(Rules& all) {
  auto const* const attention = "{SelfAttention,EncDecAttention,LocalSelfAttention,TransientGlobalSelfAttention}";
  auto const in = [&](char const* last) { return std::string("**.") + attention + last; };
  all.push_back(column(in(".q"), {SizeName::query}));
  all.push_back(column(in(".{k,v}"), {SizeName::key_value}));
  all.push_back(row(in(".o"), SizeName::value));
  // One column per head; every rank has all of them and uses its own.
  all.push_back(replicate("**.{relative_attention_bias,global_relative_attention_bias}"));
  all.push_back(column("**.DenseReluDense.{wi,wi_0,wi_1}", {SizeName::ffn}));
  all.push_back(row("**.DenseReluDense.wo", SizeName::ffn));
  all.push_back(column("**.mlp.{wi,wi_0,wi_1}", {SizeName::ffn}));
  all.push_back(row("**.mlp.wo", SizeName::ffn));
  all.push_back(column("**.experts.*.{wi,wi_0,wi_1}", {SizeName::ffn}));
  all.push_back(row("**.experts.*.wo", SizeName::ffn));
}

void add_bert(Rules& all) {
  all.push_back(column("**.{attention,crossattention}.self.query", {SizeName::query}));
  all.push_back(column("**.{attention,crossattention}.self.{key,value}", {SizeName::key_value}));
  all.push_back(row("**.{attention,crossattention}.output.dense", SizeName::value));
  all.push_back(column("**.intermediate.dense", {SizeName::ffn}));
  all.push_back(row("**.layer.*.output.dense", SizeName::ffn));
  all.push_back(replicate("**.{LayerNorm,layernorm_embedding,token_type_embeddings}"));
  all.push_back(replicate("**.{pooler,embedding_hidden_mapping_in}"));
  all.push_back(replicate("**.{pooler,predictions,generator_predictions}.dense"));
  all.push_back(replicate("**.predictions.transform.dense"));
  all.push_back(replicate("**.lm_head.dense"));
  all.push_back(replicate("**.embeddings.position_ids"));
  all.push_back(vocabulary("**.predictions"));
  all.push_back(vocabulary("**.predictions.decoder"));
  all.push_back(vocabulary("**.lm_head.decoder"));
}

}  // namespace

std::vector<LayerRule> encoder_rules() {
  Rules all;
  add_bart(all);
  add_t5(all);
  add_bert(all);
  return all;
}

}  // namespace crossrank::checkpoint
