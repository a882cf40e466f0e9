#pragma once
#include <filesystem>
#include <optional>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/shard_set.hpp"

namespace crossrank::checkpoint {

/// Section of errors about shards that are pieces of a larger number of ranks. The failed ranks are the missing ranks.
inline constexpr char const* missing_ranks_section = "ranks";
/// Section of errors about lengths of shards that do not add up. Missing ranks are one cause.
inline constexpr char const* lengths_section = "lengths";

/// Returns an error for the whole set from the error of one tensor: which tensor-parallel ranks are missing, and the
/// names of their files if the other names show them.
[[nodiscard]] FormatError missing_ranks(ShardSet const& set, Error const& finding);

/// Returns an error if the only source of a set is one rank's shard instead of the whole model, judged by the sizes in
/// the config.
///
/// If the file's name has a rank, one contradicting length is enough. Otherwise all layers that are sharded over ranks
/// must be pieces, and there must be two kinds of them. Returns nothing for sets with several sources.
[[nodiscard]] std::optional<FormatError> check_single_shard(ShardSet const& set,
                                                            std::optional<std::filesystem::path> const& rule_file = {});

/// Throws `UsageError` if `file`, which the caller gave as a whole model, has a rank in its name and the files of other
/// ranks are beside it.
void require_no_other_ranks(std::filesystem::path const& file);

}  // namespace crossrank::checkpoint
