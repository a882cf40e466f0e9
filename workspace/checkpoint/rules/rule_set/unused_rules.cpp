#include "workspace/checkpoint/rules/rule_set/unused_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <variant>

#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

enum class Use : std::uint8_t { none, fits, decides };

std::unordered_set<std::string_view> tensor_names_of(ShardSet const& set) {
  std::unordered_set<std::string_view> names;
  for (auto const& source : set.sources) {
    for (auto const& tensor : source->tensors()) names.insert(tensor.name);
  }
  return names;
}

/// Returns whether the rule leaves its tensors to later rules, because the tensor to which they are tied is missing.
bool is_untied(LayerRule const& rule, std::unordered_set<std::string_view> const& names) {
  auto const* const dropped = std::get_if<Dropped>(&rule.kind);
  return dropped != nullptr && !dropped->tied_to.empty() && !names.contains(dropped->tied_to);
}

}  // namespace

std::vector<std::string> unused_rules(RuleFile const& file, ShardSet const& set, std::string_view model_type) {
  std::vector<Use> uses(file.rules.size(), Use::none);
  auto const names = tensor_names_of(set);
  std::unordered_set<std::string_view> seen;
  for (auto const& source : set.sources) {
    for (auto const& tensor : source->tensors()) {
      if (!seen.insert(tensor.name).second) continue;
      auto const module = parse_tensor_name(tensor.name).module;
      bool decided = false;
      for (std::size_t i = 0; i < uses.size(); ++i) {
        if (uses[i] == Use::decides && decided) continue;
        auto const& rule = file.rules[i];
        if (!rule.applies_to_model(model_type) || !rule.matches(tensor.name, module)) continue;
        if (uses[i] != Use::decides) uses[i] = decided ? Use::fits : Use::decides;
        decided = decided || !is_untied(rule, names);
      }
    }
  }
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i] == Use::decides || !file.rules[i].applies_to_model(model_type)) continue;
    unused.push_back("rule " + std::to_string(i) + " (" + file.rules[i].pattern.text() + ") applies to no tensor: " +
                     (uses[i] == Use::none ? "no name matches its pattern" : "earlier rules match all of its tensors"));
  }
  return unused;
}

}  // namespace crossrank::checkpoint
