#pragma once
#include <string>

#include <crossrank/checkpoint/memory_export.hpp>

#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// Returns the rules for weights whose names are translated in `direction`: the file itself, or the file with patterns
/// and new names exchanged.
///
/// Throws `FormatError` for backward rules whose pattern does not tell the old name: with `**` or `{a,b}`, or with
/// other numbers than the new name. `source` names the file in errors.
[[nodiscard]] RuleFile directed(RuleFile file, RuleDirection direction, std::string const& source);

}  // namespace crossrank::checkpoint
