#include "workspace/checkpoint/rules/builtin/mixer_rules.hpp"

#include <string>
#include <utility>

namespace crossrank::checkpoint {
namespace {

using Models = std::vector<std::string>;

LayerRule replicated_when_split(Models const& models, LayerRule rule) {
  rule.left_whole = true;
  rule.models = models;
  return rule;
}

LayerRule mixer_column(std::string_view pattern, std::vector<RuleSize> parts) {
  return {.pattern = NamePattern(pattern), .shard_axis = ShardAxis::column, .parts = std::move(parts)};
}

LayerRule mixer_row(std::string_view pattern, SizeName inputs) {
  return {.pattern = NamePattern(pattern), .shard_axis = ShardAxis::row, .parts = {SizeName::hidden}, .inputs = inputs};
}

}  // namespace

std::vector<LayerRule> mixer_rules() {
  auto const ssm = SizeName::ssm;
  auto const heads = SizeName::ssm_heads;
  auto const states = SizeName::ssm_states;
  auto const key = SizeName::linear_key;
  auto const value = SizeName::linear_value;
  auto const hidden = SizeName::hidden;
  Models const second{"mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h"};
  Models const convolution{"lfm2", "lfm2_moe", "lfm3", "lfm3_text"};
  std::vector<LayerRule> rules;
  auto const add = [&](LayerRule rule, Models const& models = {}) {
    rules.push_back(replicated_when_split(models, std::move(rule)));
  };
  add(mixer_column("**.{mamba,mixer}.in_proj", {ssm, ssm, states, states, heads}), second);
  add(mixer_column("**.{mamba,mixer}.conv1d", {ssm, states, states}), second);
  add(mixer_column("**.{mamba,mixer}.{A_log,D,dt_bias}", {heads}), second);
  add(mixer_column("**.{mamba,mixer}.norm", {ssm}), second);
  add(mixer_column("**.{mamba,mixer}.in_proj", {ssm, ssm}));
  add(mixer_column("**.{mamba,mixer}.{conv1d,dt_proj,A_log,D}", {ssm}));
  add(mixer_row("**.{mamba,mixer}.{x_proj,out_proj}", ssm));
  add(mixer_column("**.linear_attn.in_proj_qkvz", {SizeName::linear_qkvz}));
  add(mixer_column("**.linear_attn.in_proj_ba", {SizeName::linear_ba}));
  add(mixer_column("**.linear_attn.{in_proj_qkv,conv1d}", {key, key, value}));
  add(mixer_column("**.linear_attn.in_proj_z", {value}));
  add(mixer_column("**.linear_attn.{in_proj_b,in_proj_a,A_log,dt_bias}", {SizeName::linear_heads}));
  add(mixer_row("**.linear_attn.{out_proj,o_proj}", value));
  add(mixer_column("**.linear_attn.{q_proj,k_proj,q_conv1d,k_conv1d}", {key}));
  add(mixer_column("**.linear_attn.{v_proj,g_proj,v_conv1d}", {value}));
  add(mixer_column("**.linear_attn.{a_proj,b_proj}", {SizeName::linear_heads}));
  add(mixer_column("**.conv.in_proj", {hidden, hidden, hidden}), convolution);
  add(mixer_column("**.conv.conv", {hidden}), convolution);
  add(mixer_row("**.conv.out_proj", hidden), convolution);
  return rules;
}

}  // namespace crossrank::checkpoint
