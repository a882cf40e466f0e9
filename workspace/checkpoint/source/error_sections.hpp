#pragma once

namespace crossrank::checkpoint {

/// Section of errors about shards that are pieces of a larger number of ranks. The failed ranks are the missing ranks.
inline constexpr char const* missing_ranks_section = "ranks";
/// Section of errors about lengths of shards that do not add up. Missing ranks are one cause.
inline constexpr char const* lengths_section = "lengths";

}  // namespace crossrank::checkpoint
