#include "workspace/checkpoint/discovery/grid/shard_metadata.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/safetensors/image_metadata.hpp"
#include "workspace/checkpoint/discovery/grid/missing_ranks.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::string_view rank_key = "crossrank.shard_rank";
constexpr std::string_view count_key = "crossrank.shard_count";
constexpr std::string_view job_key = "crossrank.shard_job";
constexpr int most_ranks = 1'000'000;

std::optional<int> number(std::string const* text) {
  int value = 0;
  if (text == nullptr) return std::nullopt;
  auto const [end, bad] = std::from_chars(text->data(), text->data() + text->size(), value);
  bool const whole = bad == std::errc() && end == text->data() + text->size() && value >= 0 && value <= most_ranks;
  return whole ? std::optional(value) : std::nullopt;
}

[[noreturn]] void refuse(std::string message, std::string expected, std::string got, std::string const& where) {
  throw FormatError({.operation = "checkpoint open",
                     .message = std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = where,
                     .hint = "copy the files of all ranks again, from one split",
                     .section = "files"});
}

std::optional<ShardMetadata> shard_metadata_of(ShardSource const& source) {
  auto const found = source.attributes().find(shard_metadata_key);
  if (found == source.attributes().end() || !found->is_object()) return std::nullopt;
  return ShardMetadata{
      .rank = found->value("rank", 0), .count = found->value("count", 1), .job = found->value("job", std::string())};
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::vector<std::pair<std::string, std::string>> to_header_metadata(ShardMetadata const& note) {
  return {{std::string(rank_key), std::to_string(note.rank)},
          {std::string(count_key), std::to_string(note.count)},
          {std::string(job_key), note.job}};
}

Json shard_metadata_in(codec::Header const& header) {
  auto const rank = number(header.find_metadata(rank_key));
  auto const count = number(header.find_metadata(count_key));
  auto const* const job = header.find_metadata(job_key);
  if (rank && count && job != nullptr) return {{"rank", *rank}, {"count", *count}, {"job", *job}};
  auto const image_rank = number(header.find_metadata(codec::metadata_key::rank));
  auto const world = number(header.find_metadata(codec::metadata_key::world_size));
  if (image_rank && world) return {{"rank", *image_rank}, {"count", *world}, {"job", ""}};
  return nullptr;
}

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
      refuse("the files are from different splits", first->job, note->job + " in " + name, where);
    if (!note->job.empty()) count = std::max(count, note->count);
  }
  if (count <= static_cast<int>(set.sources.size())) return;
  std::vector<int> missing;
  for (int rank = 0; rank < count; ++rank) {
    if (!seen.contains(rank)) missing.push_back(rank);
  }
  throw missing_ranks(set, FormatError({.message = "files of a split are missing",
                                        .expected = std::to_string(count) + " files",
                                        .got = std::to_string(set.sources.size()),
                                        .resource = where,
                                        .failed_ranks = missing}));
}

}  // namespace crossrank::checkpoint
