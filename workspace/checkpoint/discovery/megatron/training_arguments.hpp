#pragma once
#include <crossrank/json.hpp>

#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {

/// Returns the sizes and the grid in Megatron's saved training arguments as a config; empty if there are no arguments.
[[nodiscard]] Json config_of_arguments(Json const& attributes);

/// Returns whether the vocabulary is padded so that the ranks can divide it, that is, has more rows than tokens.
[[nodiscard]] bool has_padded_vocabulary(Json const& attributes);

/// Decides whether the second number in "mp_rank_00_001" is a stage or, if there is only one stage, an expert rank.
/// `grid` are the sizes that are known; 0: unknown.
void resolve_second_number(NamedShard& shard, AnnouncedGrid const& grid);

}  // namespace crossrank::checkpoint
