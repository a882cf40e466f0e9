#include "workspace/checkpoint/plan/checks/check_model.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"
#include "workspace/checkpoint/quantization/quantization_hints.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::size_t max_listed = 8;
// Bounds that no model reaches. They keep the comparison of layers linear for names that are made to be slow.
constexpr std::size_t max_kinds = 64;
constexpr std::size_t max_missing = 256;

/// The numbers after each prefix ("model.layers.", "model.layers.3.mlp.experts.").
using Counted = std::map<std::string, std::set<std::int64_t>>;

/// The tensors of a layer or expert: their names after its number, without further numbers.
using Roster = std::set<std::string>;
using Rosters = std::map<std::string, std::map<std::int64_t, Roster>>;

void list_name(std::optional<NumberedName> const& name, Rosters& rosters) {
  if (name && !name->after.empty())
    rosters[std::string(name->before)][name->number].insert(generalized(name->after.substr(name->after.find('.') + 1)));
}

/// A roster and the layers or experts that have it.
using Kind = std::pair<Roster const, std::vector<std::int64_t>>;

/// Returns the kinds that two or more layers or experts have, those with the most owners first.
std::vector<Kind const*> common_kinds(std::map<Roster, std::vector<std::int64_t>> const& kinds) {
  std::vector<Kind const*> common;
  for (auto const& kind : kinds) {
    if (kind.second.size() > 1) common.push_back(&kind);
  }
  std::stable_sort(common.begin(), common.end(),
                   [](auto const* a, auto const* b) { return a->second.size() > b->second.size(); });
  if (common.size() > max_kinds) common.resize(max_kinds);
  return common;
}

/// Returns the commonest kind that has all of `roster` and more, or null.
Kind const* larger_kind(Roster const& roster, std::vector<Kind const*> const& common) {
  auto const found = std::find_if(common.begin(), common.end(), [&](auto const* kind) {
    auto const& other = kind->first;
    return other.size() > roster.size() &&
           std::all_of(roster.begin(), roster.end(), [&](auto const& name) { return other.contains(name); });
  });
  return found == common.end() ? nullptr : *found;
}

/// Returns the first names of `other` that `roster` lacks, at most `max_missing`.
std::vector<std::string> lacking(Roster const& roster, Roster const& other) {
  std::vector<std::string> missing;
  for (auto const& name : other) {
    if (missing.size() == max_missing) break;
    if (!roster.contains(name)) missing.push_back(name);
  }
  return missing;
}

/// Counts layers and experts; other numbers, of steps in a sequence for example, may skip some.
void count_numbers(std::string_view name, Counted& counted) {
  if (auto const layer = find_layer(name); layer && !layer->after.empty())
    counted[std::string(layer->before)].insert(layer->number);
  if (auto const expert = find_expert(name)) counted[std::string(expert->before)].insert(expert->number);
}

/// Returns the number of layers or experts after a prefix if the config gives it.
std::optional<std::int64_t> announced(std::string_view prefix, ModelSizes const& sizes) {
  bool const experts = prefix.ends_with("experts.") || prefix.find("experts.linear_fc") != std::string_view::npos;
  if (experts && prefix.find("shared") == std::string_view::npos) return sizes[SizeName::experts];
  for (std::string_view const layers :
       {"model.layers.", "transformer.h.", "gpt_neox.layers.", "transformer.layers.", "model.decoder.layers.",
        "decoder.layers.", "language_model.model.layers.", "model.language_model.layers."}) {
    if (prefix == layers) return sizes[SizeName::layers];
  }
  return std::nullopt;
}

bool fits(std::string_view module, LayerTensors const& tensors, LayerHints const& hints, LayerOrder order,
          std::string& finding) {
  try {
    auto const format = LayerFormat::recognize(module, tensors, hints, order);
    for (std::size_t role = 0; role < LayerTensors::role_count; ++role) {
      auto const* const tensor = tensors.by_role.at(role);
      if (tensor != nullptr) static_cast<void>(format.axes(static_cast<TensorRole>(role), *tensor));
    }
    return true;
  } catch (Error const& error) {
    auto const& info = error.info();
    finding = info.message + (info.expected.empty() ? "" : ": expected " + info.expected) +
              (info.got.empty() ? "" : (info.expected.empty() ? ": " : ", got ") + info.got);
    return false;
  }
}

bool has_scales(LayerTensors const& tensors) {
  return tensors[TensorRole::weight] != nullptr &&
         (tensors[TensorRole::weight_scale] != nullptr || tensors[TensorRole::zeros] != nullptr);
}

}  // namespace

std::string NumberGap::text() const {
  if (!missing.empty()) {
    auto const others = missing_count - std::ssize(missing);
    return prefix + "* lacks number " + list_text(missing, max_listed) +
           (others > 0 ? " and " + std::to_string(others) + " more" : "");
  }
  return prefix + "* has number " + list_text(extra, max_listed) + " where the config has " +
         std::to_string(wanted.value_or(0));
}

std::vector<NumberGap> find_gaps(std::span<std::string const> names, Json const& config) {
  Counted counted;
  for (auto const& name : names) count_numbers(name, counted);
  ModelSizes const sizes(config);
  std::vector<NumberGap> gaps;
  for (auto const& [prefix, numbers] : counted) {
    NumberGap gap{.prefix = prefix, .wanted = announced(prefix, sizes)};
    // Without a count in the config the numbers may begin anywhere, such as those of one stage.
    auto const begin = gap.wanted ? 0 : *numbers.begin();
    auto const end = gap.wanted ? *gap.wanted : *numbers.rbegin();
    for (auto i = begin; i < end && gap.missing.size() < max_listed; ++i) {
      if (!numbers.contains(i)) gap.missing.push_back(i);
    }
    gap.missing_count = end - begin - std::distance(numbers.begin(), numbers.lower_bound(end));
    // Layers that predict further tokens follow the others and are not in their count.
    auto const wanted = gap.wanted ? *gap.wanted + sizes[SizeName::further_layers].value_or(0) : 0;
    for (auto const number : numbers) {
      if (gap.wanted && number >= wanted) gap.extra.push_back(number);
    }
    if (!gap.missing.empty() || !gap.extra.empty()) gaps.push_back(std::move(gap));
  }
  return gaps;
}

std::vector<Defect> check_coverage(std::span<std::string const> names, Json const& config, std::string const& where) {
  std::vector<Defect> defects;
  for (auto gap : find_gaps(names, config)) {
    if (!gap.missing.empty())
      defects.push_back(
          {DefectKind::coverage, where, gap.text(), "copy the missing shard there, or correct the config"});
    gap.missing.clear();
    if (!gap.extra.empty())
      defects.push_back({DefectKind::coverage, where, gap.text(), "check that config and files are of one model"});
  }
  return defects;
}

std::vector<Defect> check_siblings(std::span<std::string const> names) {
  Rosters rosters;
  for (auto const& name : names) {
    list_name(find_layer(name), rosters);
    list_name(find_expert(name), rosters);
  }
  std::vector<Defect> defects;
  for (auto const& [prefix, siblings] : rosters) {
    std::map<Roster, std::vector<std::int64_t>> kinds;
    for (auto const& [number, roster] : siblings) kinds[roster].push_back(number);
    auto const common = common_kinds(kinds);
    for (auto const& [roster, owners] : kinds) {
      if (owners.size() > 1 || owners.front() == siblings.begin()->first) continue;
      auto const* const larger = larger_kind(roster, common);
      if (larger == nullptr) continue;
      for (auto const& name : lacking(roster, larger->first)) {
        defects.push_back(
            {DefectKind::coverage, prefix + std::to_string(owners.front()) + "." + name,
             "missing, and " + std::to_string(larger->second.size()) + " others of " + prefix + "* have it",
             "copy the missing shard there, or save the model again"});
      }
    }
  }
  return defects;
}

std::vector<Defect> check_scales(ShardSource const& source, Json const& config, Json const& quantization) {
  QuantizationHints const hints(config, quantization);
  std::vector<std::string_view> order;
  std::unordered_map<std::string_view, LayerTensors> layers;
  for (auto const& tensor : source.tensors()) {
    auto const parsed = parse_tensor_name(tensor.name);
    auto const [at, fresh] = layers.try_emplace(parsed.module);
    if (fresh) order.push_back(parsed.module);
    at->second.set(parsed.role, tensor);
  }
  std::vector<Defect> defects;
  for (auto const module : order) {
    auto const& tensors = layers.at(module);
    if (!has_scales(tensors)) continue;
    bool const stacked = tensors[TensorRole::weight]->shape.size() > 2;
    auto const module_hints = hints.of(module);
    std::string finding;
    std::string ignored;
    // The names do not say in which order a matrix lies, or whether the first of three dimensions counts experts.
    if (!fits(module, tensors, module_hints, {.stacked = stacked}, finding) &&
        !fits(module, tensors, module_hints, {.stacked = stacked, .transposed = true}, ignored) &&
        !(stacked && fits(module, tensors, module_hints, {}, ignored)))
      defects.push_back({DefectKind::scales, std::string(module), finding + " in " + source.name(), {}});
  }
  return defects;
}

}  // namespace crossrank::checkpoint
