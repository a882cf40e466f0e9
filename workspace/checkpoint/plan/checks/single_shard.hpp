#pragma once
#include <filesystem>
#include <optional>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// Returns an error if the only source of a set is one rank's shard instead of the whole model, judged by the sizes
/// that the rules know.
///
/// If the file's name has a rank, one contradicting length is enough. Otherwise all layers that are sharded over ranks
/// must be pieces, and there must be two kinds of them. Pieces whose files do not give the lengths of whole tensors
/// must add up to the config's lengths in every layer. Returns nothing for sets with several sources, and if the files
/// say that they are whole.
[[nodiscard]] std::optional<FormatError> check_single_shard(ShardSet const& set,
                                                            std::optional<std::filesystem::path> const& rule_file = {});

}  // namespace crossrank::checkpoint
