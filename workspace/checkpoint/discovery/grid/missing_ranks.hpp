#pragma once
#include <filesystem>
#include <optional>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/shard_set.hpp"

namespace crossrank::checkpoint {

/// Section of errors that say that the shards of a tensor are pieces of more ranks than there are; the missing ranks
/// are the failed ranks.
inline constexpr char const* missing_ranks_section = "ranks";
/// Section of errors that say that the lengths of shards do not add up: what missing ranks lead to as well.
inline constexpr char const* lengths_section = "lengths";

/// One sentence for the whole set in place of what one tensor tells: which tensor-parallel ranks are missing, and how
/// their files are called where the others' names tell.
[[nodiscard]] FormatError missing_ranks(ShardSet const& set, Error const& finding);

/// Whether the only source of a set is the whole model by the sizes that its config gives, else the other ranks' files
/// are missing. One length that contradicts them is enough where the file's name says that it is one rank's; where not,
/// every layer that ranks would cut must be a piece, and there must be two kinds of them. Nothing for other sets.
[[nodiscard]] std::optional<FormatError> check_single_shard(ShardSet const& set,
                                                            std::optional<std::filesystem::path> const& rule_file = {});

/// A file given by its own path is taken for the whole model: `UsageError` when its name says that it is one rank's and
/// the files of others stand beside it.
void require_no_other_ranks(std::filesystem::path const& file);

}  // namespace crossrank::checkpoint
