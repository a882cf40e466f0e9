#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// Returns a sentence for each rule of a file that applies to no tensor of the set, because nothing matches its pattern
/// or because earlier rules match first. Ignores rules for other model types.
[[nodiscard]] std::vector<std::string> unused_rules(RuleFile const& file, ShardSet const& set,
                                                    std::string_view model_type);

}  // namespace crossrank::checkpoint
