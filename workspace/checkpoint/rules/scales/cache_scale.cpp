#include "workspace/checkpoint/rules/scales/cache_scale.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(SourceTensor const& scale, std::string message, std::string expected, std::string got) {
  throw FormatError(
      {.operation = "cache scale",
       .message = std::move(message),
       .expected = std::move(expected),
       .got = std::move(got),
       .resource = scale.name,
       .hint = R"(say how it is sharded by a rule such as {"tensor": ")" + scale.name + R"(", "axis": 0})",
       .section = to_string(ErrorSection::shape)});
}

/// Throws unless only the first dimension may be longer than 1, which counts heads.
void require_heads(SourceTensor const& scale) {
  auto const& shape = scale.shape;
  bool const by_head = shape.empty() || shape.numel() == shape[0];
  if (!by_head) refuse(scale, "a scale of the cache is neither one value nor one per head", "", to_string(shape));
}

/// A scale of one value has three dimensions only if it is the part of a scale per head.
bool is_one_value(SourceTensor const& scale) { return scale.shape.numel() == 1 && scale.shape.size() < 3; }

}  // namespace

std::optional<ShardedTensor> joined_heads(std::string_view name, std::span<SourceTensor const* const> shards,
                                          ModelSizes const& sizes) {
  auto const& first = *shards.front();
  std::int64_t sum = 0;
  for (auto const* shard : shards) {
    require_heads(*shard);
    sum += shard->shape.empty() ? 1 : shard->shape[0];
  }
  if (std::all_of(shards.begin(), shards.end(), [](auto const* shard) { return is_one_value(*shard); })) return {};
  auto const heads = sizes[name.ends_with("q_scale") ? SizeName::heads : SizeName::kv_heads];
  auto const ranks = std::ssize(shards);
  if (heads && *heads > 0 && sum % *heads == 0 && ranks % (sum / *heads) == 0)
    return ShardedTensor{.replicas = static_cast<int>(sum / *heads)};
  if (sum == ranks) return {};
  if (heads)
    refuse(first, "the heads of a scale of the cache contradict the config", std::to_string(*heads),
           std::to_string(sum));
  return ShardedTensor{};
}

std::optional<ShardedTensor> split_heads(SourceTensor const& scale, int ranks) {
  require_heads(scale);
  if (scale.shape.numel() == 1) return {};
  auto const heads = scale.shape[0];
  if (heads > ranks || heads < 1) return ShardedTensor{};
  if (scale.shape.size() < 3)
    refuse(scale, "each rank would get one value, as if it were a scale of all heads",
           "more heads than ranks, or shape [heads, 1, 1]", to_string(scale.shape));
  return ShardedTensor{.replicas = static_cast<int>(ranks / heads)};
}

}  // namespace crossrank::checkpoint
