#include "workspace/checkpoint/source/shard_metadata.hpp"

#include <charconv>
#include <string_view>

#include "lib/codec/safetensors/image_metadata.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::string_view rank_key = "crossrank.shard_rank";
constexpr std::string_view count_key = "crossrank.shard_count";
constexpr std::string_view split_key = "crossrank.shard_job";
constexpr std::string_view save_key = "crossrank.save_job";
constexpr int max_ranks = 1'000'000;

std::optional<int> number(std::string const* text) {
  int value = 0;
  if (text == nullptr) return std::nullopt;
  auto const [end, bad] = std::from_chars(text->data(), text->data() + text->size(), value);
  bool const whole = bad == std::errc() && end == text->data() + text->size() && value >= 0 && value <= max_ranks;
  return whole ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> to_header_metadata(ShardMetadata const& note) {
  return {{std::string(rank_key), std::to_string(note.rank)},
          {std::string(count_key), std::to_string(note.count)},
          {std::string(note.saved ? save_key : split_key), note.job}};
}

Json shard_metadata_in(codec::Header const& header) {
  auto const rank = number(header.find_metadata(rank_key));
  auto const count = number(header.find_metadata(count_key));
  for (auto const key : {split_key, save_key}) {
    auto const* const job = header.find_metadata(key);
    if (rank && count && job != nullptr)
      return {{"rank", *rank}, {"count", *count}, {"job", *job}, {"saved", key == save_key}};
  }
  auto const image_rank = number(header.find_metadata(codec::metadata_key::rank));
  auto const world = number(header.find_metadata(codec::metadata_key::world_size));
  if (image_rank && world) return {{"rank", *image_rank}, {"count", *world}, {"job", ""}};
  return nullptr;
}

std::optional<ShardMetadata> shard_metadata_of(ShardSource const& source) {
  auto const found = source.attributes().find(shard_metadata_key);
  if (found == source.attributes().end() || !found->is_object()) return std::nullopt;
  return ShardMetadata{.rank = found->value("rank", 0),
                       .count = found->value("count", 1),
                       .job = found->value("job", std::string()),
                       .saved = found->value("saved", false)};
}

}  // namespace crossrank::checkpoint
