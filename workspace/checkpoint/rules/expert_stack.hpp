#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "workspace/checkpoint/model/model_sizes.hpp"

namespace crossrank::checkpoint {

/// Returns whether the stacks of experts of the expert-parallel ranks must be concatenated; false if each rank has all
/// experts. `lengths` are the first dimensions, one per rank.
///
/// `FormatError` when the config does not give the number of experts, or when that number is neither the length of each
/// stack nor their sum.
[[nodiscard]] bool stacks_concatenate(std::string_view name, std::span<std::int64_t const> lengths,
                                      ModelSizes const& sizes);

}  // namespace crossrank::checkpoint
