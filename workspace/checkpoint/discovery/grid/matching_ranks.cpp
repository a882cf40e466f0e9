#include "workspace/checkpoint/discovery/grid/matching_ranks.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_metadata.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(std::string message, std::string expected, std::string got, std::string const& where) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = where,
                     .hint = "copy the files of all ranks again, from one save or split",
                     .section = to_string(ErrorSection::files)});
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

void require_matching_ranks(ShardSet const& set, std::vector<NamedShard> const& shards, std::string const& where) {
  std::map<int, std::string> seen;
  std::optional<ShardMetadata> first;
  int count = 0;
  for (std::size_t i = 0; i < set.sources.size() && i < shards.size(); ++i) {
    auto const note = shard_metadata_of(*set.sources[i]);
    if (!note) continue;
    auto const& name = set.sources[i]->name();
    auto const [at, fresh] = seen.emplace(note->rank, name);
    if (!fresh) {
      refuse(at->second + " and " + name + " both belong to " + rank_text(note->rank) + ": one is a copy of the other",
             "one file per rank", "two files of " + rank_text(note->rank), where);
    }
    auto const& numbers = shards[i].numbers;
    auto const named = numbers.rank ? numbers.rank : numbers.tp;
    if (named && *named != note->rank) {
      refuse(name + " belongs to " + rank_text(note->rank) + ": files were exchanged or renamed",
             rank_text(*named) + " by its name", rank_text(note->rank) + " by its metadata", where);
    }
    if (!first) first = note;
    if (note->job != first->job)
      refuse("the files are from different jobs", first->job, note->job + " in " + name, where);
    if (!note->job.empty()) count = std::max(count, note->count);
  }
  if (count <= static_cast<int>(set.sources.size())) return;
  std::vector<int> missing;
  for (int rank = 0; rank < count; ++rank) {
    if (!seen.contains(rank)) missing.push_back(rank);
  }
  throw missing_ranks(set, FormatError({.message = "files of ranks are missing",
                                        .expected = std::to_string(count) + " files",
                                        .got = std::to_string(set.sources.size()),
                                        .resource = where,
                                        .failed_ranks = missing}));
}

}  // namespace crossrank::checkpoint
