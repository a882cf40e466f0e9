#include "workspace/checkpoint/rules/layer_rule.hpp"

#include <algorithm>

#include "lib/core/overloads.hpp"

namespace crossrank::checkpoint {

bool LayerRule::applies_to_model(std::string_view model_type) const {
  return models.empty() || std::find(models.begin(), models.end(), model_type) != models.end();
}

bool LayerRule::matches(std::string_view name, std::string_view module) const {
  if (pattern.matches(whole_name ? name : module)) return true;
  // Buffers such as "...attn.masked_bias", or a parameter with the name of a role.
  return !whole_name && is<Replicated>() && pattern.matches(name);
}

LayerOrder LayerRule::order() const {
  return std::visit(Overloads{[](ColumnLayer const& layer) { return layer.order; },
                              [](RowLayer const& layer) { return layer.order; },  //
                              [](auto const&) { return LayerOrder{}; }},
                    kind);
}

bool LayerRule::left_whole() const {
  return std::visit(Overloads{[](ColumnLayer const& layer) { return layer.left_whole; },
                              [](RowLayer const& layer) { return layer.left_whole; },  //
                              [](auto const&) { return false; }},
                    kind);
}

std::string LayerRule::origin() const { return (from_file ? "rule file: " : "built-in rule ") + pattern.text(); }

std::string_view sharding_name(RuleKind const& kind) {
  using Name = std::string_view;
  return std::visit(
      Overloads{[](Replicated const&) { return Name("replicate"); }, [](ColumnLayer const&) { return Name("column"); },
                [](RowLayer const&) { return Name("row"); }, [](VocabularyLayer const&) { return Name("vocabulary"); },
                [](ReducedValue const&) { return Name("reduce"); }, [](Dropped const&) { return Name("drop"); },
                [](ShardedTensor const&) { return Name("column"); }},
      kind);
}

std::optional<std::int64_t> resolve(std::optional<RuleSize> const& size, ModelSizes const& sizes) {
  if (!size) return std::nullopt;
  if (auto const* number = std::get_if<std::int64_t>(&*size)) return *number;
  return sizes[std::get<SizeName>(*size)];
}

bool is_of_kv_heads(RuleSize const& size) {
  return size == RuleSize(SizeName::key_value) || size == RuleSize(SizeName::kv_values);
}

}  // namespace crossrank::checkpoint
