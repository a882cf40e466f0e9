#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "workspace/checkpoint/source/shard_set.hpp"
#include "workspace/checkpoint/rules/rule_file.hpp"

namespace crossrank::checkpoint {

/// Finds the rules of a file that decide about no tensor of the set: because nothing fits their pattern, or because
/// earlier rules take all that does. One sentence for each. Rules for other model types are left out.
[[nodiscard]] std::vector<std::string> unused_rules(RuleFile const& file, ShardSet const& set,
                                                    std::string_view model_type);

}  // namespace crossrank::checkpoint
