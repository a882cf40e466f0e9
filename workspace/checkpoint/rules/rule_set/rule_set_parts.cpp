#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"

#include <string>
#include <utility>
#include <variant>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse_parts(TensorName const& parsed, std::string message, std::string expected, std::string got) {
  throw FormatError(
      {.operation = "merge rules",
       .message = std::move(message),
       .expected = std::move(expected),
       .got = std::move(got),
       .resource = std::string(parsed.module),
       .hint = "give the sizes with \"sizes\" in `rules`, or put the config.json of the model beside the shards",
       .section = "config"});
}

}  // namespace

FusedParts RuleSet::State::parts_of(LayerRule const& rule, TensorName const& parsed, std::size_t source) const {
  if (!rule.part_names.empty()) return named_parts_of(rule, parsed, source);
  FusedParts parts;
  auto const* const layer = std::get_if<ColumnLayer>(&rule.kind);
  if (layer == nullptr || layer->order.stacked || layer->layout == PartLayout::grouped) return parts;
  if (rule.from_file || towers.sizes_of(parsed.module) != nullptr) return parts;
  auto modules = names.parts_of(parsed.module);
  if (modules.empty() || modules.size() != layer->parts.size()) return parts;
  for (auto const& part : layer->parts) {
    auto const width = resolve(part, sizes);
    if (!width) return parts;
    parts.widths.push_back(*width);
  }
  parts.modules = std::move(modules);
  return parts;
}

FusedParts RuleSet::State::named_parts_of(LayerRule const& rule, TensorName const& parsed, std::size_t source) const {
  auto const& layer = std::get<ColumnLayer>(rule.kind);
  FusedParts parts{.grouped = layer.layout == PartLayout::grouped};
  auto const module = grid.global_name(parsed.module, set.places.at(source));
  for (auto const& name : rule.part_names) parts.modules.push_back(fill_numbers(name, module));
  for (auto const& part : layer.parts) {
    auto const* const named = std::get_if<SizeName>(&part);
    auto const width = resolve(part, sizes);
    if (!width)
      refuse_parts(parsed, "the config does not tell how wide the parts of a fused layer are",
                   std::string(to_string(*named)), "no such size");
    parts.exact = named != nullptr && !parts.grouped;
    if (named == nullptr || !parts.grouped) {
      parts.widths.push_back(*width);
      continue;
    }
    // A group has the queries, the key and the value of one key/value head.
    auto const heads = sizes[SizeName::kv_heads].value_or(0);
    if (heads < 1 || *width % heads != 0)
      refuse_parts(parsed, "the parts of a fused layer do not divide into its groups",
                   "a multiple of the key/value heads", std::to_string(*width) + " for " + std::to_string(heads));
    parts.widths.push_back(*width / heads);
  }
  return parts;
}

}  // namespace crossrank::checkpoint
