#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// A rule file (see RULES.md): the user's rules, which come before the built-in rules, and sizes that the config lacks.
struct RuleFile {
  std::vector<LayerRule> rules{};
  std::optional<LayerRule> otherwise{};  ///< for layers that no other rule covers
  Json sizes = Json::object();           ///< keys of config.json
  std::string text{};                    ///< the text of the file; empty if there is no file

  /// Parses a rule file. `FormatError` names the rule and the key of anything that RULES.md does not allow.
  [[nodiscard]] static RuleFile parse(std::string_view text, std::string const& source);
  /// Reads a rule file. `IoError` when it cannot be read; errors of `parse`.
  [[nodiscard]] static RuleFile read(std::filesystem::path const& path);
};

/// Returns `target` with each `*` replaced by the next number among the elements of `name`. `FormatError` when there
/// are fewer numbers.
[[nodiscard]] std::string fill_numbers(std::string_view target, std::string_view name);

}  // namespace crossrank::checkpoint
