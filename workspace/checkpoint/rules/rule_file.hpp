#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/rules/layer_rule.hpp"

namespace crossrank::checkpoint {

/// A rule file, as RULES.md describes it: rules of one's own, which come before the built-in ones, and sizes that the
/// config lacks.
struct RuleFile {
  std::vector<LayerRule> rules{};
  std::optional<LayerRule> otherwise{};  ///< for layers that neither these rules nor the built-in ones know
  Json sizes = Json::object();           ///< keys of config.json
  std::string text{};                    ///< as read; empty: no file

  /// Strict: `FormatError` names the rule and the key for anything that RULES.md does not allow.
  [[nodiscard]] static RuleFile parse(std::string_view text, std::string const& source);
  /// `IoError` when the file cannot be read.
  [[nodiscard]] static RuleFile read(std::filesystem::path const& path);
};

/// `target` with each `*` replaced by the next number among the elements of `name`; those that are left over stay.
[[nodiscard]] std::string fill_numbers(std::string_view target, std::string_view name);

}  // namespace crossrank::checkpoint
