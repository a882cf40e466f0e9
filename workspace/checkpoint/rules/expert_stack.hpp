#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Whether the experts that expert-parallel ranks have stacked in one tensor follow each other: `true`; or each rank
/// has all of them: `false`. `lengths` are the first dimensions, one per rank.
///
/// `FormatError` when the config does not say how many experts there are, or the ranks have neither all nor together as
/// many.
[[nodiscard]] bool stacks_concatenate(std::string_view name, std::span<std::int64_t const> lengths,
                                      ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
