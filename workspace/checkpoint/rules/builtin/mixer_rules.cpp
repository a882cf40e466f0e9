#include "workspace/checkpoint/rules/builtin/mixer_rules.hpp"

#include <string>
#include <utility>

#include "workspace/checkpoint/rules/builtin/rule_builders.hpp"

namespace crossrank::checkpoint {
namespace {

using namespace rules;
using Models = std::vector<std::string>;

}  // namespace

std::vector<LayerRule> mixer_rules() {
  auto const ssm = SizeName::ssm;
  auto const heads = SizeName::ssm_heads;
  auto const states = SizeName::ssm_states;
  auto const key = SizeName::linear_key;
  auto const value = SizeName::linear_value;
  auto const hidden = SizeName::hidden;
  Models const first{"mamba", "falcon_mamba", "jamba"};
  Models const second{"mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h"};
  Models const separate{"qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"};
  Models const convolution{"lfm2", "lfm2_moe", "lfm3", "lfm3_text"};
  Rules all;
  auto const add = [&](LayerRule rule, Models const& models = {}) {
    rule.models = models;
    all.push_back(replicated_when_split(std::move(rule)));
  };
  add(column("**.{mamba,mixer}.in_proj", {ssm, ssm, states, states, heads}), second);
  add(column("**.{mamba,mixer}.conv1d", {ssm, states, states}), second);
  add(column("**.{mamba,mixer}.{A_log,D,dt_bias}", {heads}), second);
  add(column("**.{mamba,mixer}.norm", {ssm}), second);
  // Both generations have layers of these names, with other parts. Without a model type nothing tells them apart.
  add(column("**.{mamba,mixer}.in_proj", {ssm, ssm}), first);
  add(column("**.{mamba,mixer}.conv1d", {ssm}), first);
  add(column("**.{mamba,mixer}.{dt_proj,A_log,D}", {ssm}));
  add(row("**.{mamba,mixer}.{x_proj,out_proj}", ssm));
  // Programs that fuse these layers of Qwen3.5 put the parts one after another; those of Qwen3-Next alternate per head.
  add(column("**.linear_attn.in_proj_qkvz", {key, key, value, value}), separate);
  add(column("**.linear_attn.in_proj_ba", {SizeName::linear_heads, SizeName::linear_heads}), separate);
  add(column("**.linear_attn.in_proj_qkvz", {SizeName::linear_qkvz}));
  add(column("**.linear_attn.in_proj_ba", {SizeName::linear_ba}));
  add(column("**.linear_attn.{in_proj_qkv,conv1d}", {key, key, value}));
  add(column("**.linear_attn.in_proj_z", {value}));
  add(column("**.linear_attn.{in_proj_b,in_proj_a,A_log,dt_bias}", {SizeName::linear_heads}));
  add(row("**.linear_attn.{out_proj,o_proj}", value));
  add(column("**.linear_attn.{q_proj,k_proj,q_conv1d,k_conv1d}", {key}));
  add(column("**.linear_attn.{v_proj,g_proj,v_conv1d}", {value}));
  add(column("**.linear_attn.{a_proj,b_proj}", {SizeName::linear_heads}));
  add(column("**.conv.in_proj", {hidden, hidden, hidden}), convolution);
  add(column("**.conv.conv", {hidden}), convolution);
  add(row("**.conv.out_proj", hidden), convolution);
  return all;
}

}  // namespace crossrank::checkpoint
