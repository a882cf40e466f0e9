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
  return {.pattern = NamePattern(pattern), .kind = ColumnLayer{.parts = std::move(parts)}};
}

inline LayerRule row(std::string_view pattern, SizeName inputs) {
  return {.pattern = NamePattern(pattern), .kind = RowLayer{.inputs = inputs, .outputs = SizeName::hidden}};
}

inline LayerRule replicate(std::string_view pattern) { return {.pattern = NamePattern(pattern), .kind = Replicated{}}; }

inline LayerRule vocabulary(std::string_view pattern) {
  return {.pattern = NamePattern(pattern), .kind = VocabularyLayer{}};
}

/// Makes the parts alternate per key/value head.
inline LayerRule grouped(LayerRule rule) {
  std::get<ColumnLayer>(rule.kind).layout = PartLayout::grouped;
  return rule;
}

/// Makes the parts alternate in this number of groups.
inline LayerRule in_groups(RuleSize groups, LayerRule rule) {
  auto& layer = std::get<ColumnLayer>(rule.kind);
  layer.layout = PartLayout::grouped;
  layer.groups = groups;
  return rule;
}

inline LayerRule gated(LayerRule rule) {
  std::get<ColumnLayer>(rule.kind).gate = true;
  return rule;
}

/// Makes all parts repeat, once for each of `times`.
inline LayerRule repeated(SizeName times, LayerRule rule) {
  std::get<ColumnLayer>(rule.kind).repeat = times;
  return rule;
}

inline LayerRule ordered(LayerOrder order, LayerRule rule) {
  if (auto* const column = std::get_if<ColumnLayer>(&rule.kind)) {
    column->order = order;
  } else {
    std::get<RowLayer>(rule.kind).order = order;
  }
  return rule;
}

inline LayerRule stacked(LayerRule rule, bool transposed = false) {
  return ordered({.stacked = true, .transposed = transposed}, std::move(rule));
}

inline LayerRule transposed(LayerRule rule) { return ordered({.transposed = true}, std::move(rule)); }

/// Makes a split replicate the layer, though a merge accepts it sharded.
inline LayerRule replicated_when_split(LayerRule rule) {
  if (auto* const column = std::get_if<ColumnLayer>(&rule.kind)) {
    column->left_whole = true;
  } else {
    std::get<RowLayer>(rule.kind).left_whole = true;
  }
  return rule;
}

/// Ignores the size in the config, which belongs to another layer.
inline LayerRule by_name(LayerRule rule) {
  std::get<RowLayer>(rule.kind).inputs.reset();
  return rule;
}

inline LayerRule only(std::initializer_list<char const*> models, LayerRule rule) {
  rule.models.assign(models.begin(), models.end());
  return rule;
}

}  // namespace crossrank::checkpoint::rules
