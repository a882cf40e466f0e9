#pragma once
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "workspace/checkpoint/rules/layer_rule.hpp"

/// Short constructors for the built-in rules.
namespace crossrank::checkpoint::rules {

using Rules = std::vector<LayerRule>;
using Sizes = std::vector<RuleSize>;

inline LayerRule column(std::string_view pattern, Sizes parts) {
  return {.pattern = NamePattern(pattern),
          .shard_axis = ShardAxis::column,
          .parts = std::move(parts),
          .inputs = SizeName::hidden};
}

inline LayerRule row(std::string_view pattern, SizeName inputs) {
  return {.pattern = NamePattern(pattern), .shard_axis = ShardAxis::row, .parts = {SizeName::hidden}, .inputs = inputs};
}

inline LayerRule replicate(std::string_view pattern) {
  return {.pattern = NamePattern(pattern), .shard_axis = ShardAxis::replicate};
}

inline LayerRule vocabulary(std::string_view pattern) {
  return {.pattern = NamePattern(pattern),
          .shard_axis = ShardAxis::vocabulary,
          .parts = {SizeName::vocabulary},
          .inputs = SizeName::hidden};
}

/// Makes the parts alternate per key/value head.
inline LayerRule grouped(LayerRule rule) {
  rule.grouped = true;
  return rule;
}

/// Makes the parts alternate in this number of groups.
inline LayerRule in_groups(RuleSize groups, LayerRule rule) {
  rule.grouped = true;
  rule.groups = groups;
  return rule;
}

inline LayerRule gated(LayerRule rule) {
  rule.gate = true;
  return rule;
}

inline LayerRule stacked(LayerRule rule, bool transposed = false) {
  rule.stacked = true;
  rule.transposed = transposed;
  return rule;
}

inline LayerRule transposed(LayerRule rule) {
  rule.transposed = true;
  return rule;
}

/// Ignores the size in the config, which belongs to another layer.
inline LayerRule by_name(LayerRule rule) {
  rule.inputs.reset();
  return rule;
}

inline LayerRule only(std::initializer_list<char const*> models, LayerRule rule) {
  rule.models.assign(models.begin(), models.end());
  return rule;
}

}  // namespace crossrank::checkpoint::rules
