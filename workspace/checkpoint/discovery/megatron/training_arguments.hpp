#pragma once
#include <vector>

#include "workspace/checkpoint/discovery/shard_set.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"

namespace crossrank::checkpoint {

/// What the arguments of Megatron's training, saved beside the weights, say of a model: sizes and grid under the keys
/// of a config. Empty where there are none.
[[nodiscard]] Json config_of_arguments(Json const& attributes);

/// Whether the arguments say that the vocabulary has more rows than there are tokens, for ranks to divide it.
[[nodiscard]] bool has_padded_vocabulary(Json const& attributes);

/// "mp_rank_00_001" names a stage or, where there is one stage only, an expert rank: makes it the one that `config`
/// says.
void resolve_second_number(std::vector<ShardFiles>& shards, Json const& config);

}  // namespace crossrank::checkpoint
