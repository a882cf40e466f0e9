#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/rules/layer_rule.hpp"
#include "workspace/checkpoint/source/shard_source.hpp"

namespace crossrank::checkpoint {

// Scales of the key/value cache stand beside the layers of an attention: one value for all heads, or one per head, of
// shape [heads] or [heads, 1, 1] (`attn_head` of compressed-tensors).

/// Returns how the shards of a scale per head are joined; nothing for one value. `FormatError` for other shapes, and
/// for a number of heads that contradicts the config.
[[nodiscard]] std::optional<ShardedTensor> joined_heads(std::string_view name,
                                                        std::span<SourceTensor const* const> shards,
                                                        ModelSizes const& sizes);

/// Returns how a scale per head is split over `ranks`; nothing for one value. `FormatError` for other shapes, and when
/// a merge could not tell the shards from a scale of all heads.
[[nodiscard]] std::optional<ShardedTensor> split_heads(SourceTensor const& scale, int ranks);

}  // namespace crossrank::checkpoint
