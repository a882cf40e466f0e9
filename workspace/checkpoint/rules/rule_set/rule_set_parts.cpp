#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"

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
       .section = to_string(ErrorSection::config)});
}

/// Throws `FormatError` if two parts get one name once the `*` are filled. One of the parts would be lost.
void require_different_names(std::vector<std::string> const& modules, TensorName const& parsed) {
  std::set<std::string_view> seen;
  for (auto const& module : modules) {
    if (seen.insert(module).second) continue;
    throw FormatError({.operation = "merge rules",
                       .message = "two parts of a fused layer are given the name \"" + module + "\"",
                       .resource = std::string(parsed.module),
                       .hint = "correct the \"rename\" in `rules`",
                       .section = to_string(ErrorSection::rules)});
  }
}

[[noreturn]] void refuse_place(SourceTensor const& tensor, std::string expected, std::string got) {
  throw FormatError({.operation = "merge rules",
                     .message = "the tensor cannot become a part of a fused layer",
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = tensor.name,
                     .hint = "translate the unquantized weights and quantize again",
                     .section = to_string(ErrorSection::shape)});
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
  require_different_names(parts.modules, parsed);
  for (auto const& part : layer.parts) {
    auto const* const named = std::get_if<SizeName>(&part);
    auto const width = resolve(part, sizes);
    if (!width)
      refuse_parts(parsed, "the config does not give the widths of the parts of a fused layer",
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

FusedPlace RuleSet::State::fused_place_of(LayerRule const& rule, TensorName const& parsed,
                                          RankTensors const& asked) const {
  auto const parts = named_parts_of(*rule.fused, parsed, asked.sources.front());
  FusedPlace place{.part = rule.part, .widths = parts.widths, .grouped = parts.grouped};
  for (auto const& module : parts.modules) place.parts.push_back(module + std::string(parsed.suffix));
  bool const named = std::holds_alternative<SizeName>(std::get<ColumnLayer>(rule.fused->kind).parts.front());
  if (named) place.times = parts.grouped ? sizes[SizeName::kv_heads].value_or(0) : 1;
  // Numbers count the outputs of a group, or else are relative.
  bool const exact = named || parts.grouped;
  std::int64_t unit = 1;
  std::int64_t steps = 1;
  for (std::size_t i = 0; i < asked.tensors.size(); ++i) {
    auto const& tensor = *asked.tensors[i];
    auto const format = LayerFormat::recognize(parsed.module, layers_of(asked.sources[i]).at(parsed.module),
                                               hints_of(parsed.module), {});
    auto const axes = format.axes(parsed.role, tensor);
    if (axes.single || axes.out != 0)
      refuse_place(tensor, "the outputs of the layer as dimension 0", std::string(to_string(parsed.role)));
    unit = axes.out_unit;
    steps = axes.out_steps;
    if (format.outputs() % unit != 0)
      refuse_place(tensor, "multiples of " + std::to_string(unit) + " outputs", std::to_string(format.outputs()));
  }
  for (auto& width : place.widths) {
    if (exact && width % unit != 0)
      refuse_place(*asked.tensors.front(), "multiples of " + std::to_string(unit) + " outputs in each group",
                   list_text(parts.widths));
    if (exact) width = width / unit * steps;
  }
  return place;
}

}  // namespace crossrank::checkpoint
