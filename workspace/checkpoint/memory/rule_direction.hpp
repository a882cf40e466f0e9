#pragma once
#include <string>

#include <crossrank/checkpoint/memory_export.hpp>

#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// Returns the rules for weights whose names are translated in `direction`: the file itself, or the file with patterns
/// and new names exchanged. A rule that separates the parts of a fused layer becomes a rule for each part, with
/// `LayerRule::fused`. The text of the result has no parts, so ranks exchange the text of the file itself.
///
/// Throws `FormatError` for backward rules whose pattern does not tell the old name: with `**` or `{a,b}`, or with
/// other numbers than the new name. `source` names the file in errors.
[[nodiscard]] RuleFile directed(RuleFile file, RuleDirection direction, std::string const& source);

}  // namespace crossrank::checkpoint
