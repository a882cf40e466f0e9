#include "workspace/checkpoint/rules/layer_rule.hpp"

#include <array>
#include <utility>

namespace crossrank::checkpoint {
namespace {

constexpr std::array<std::pair<ShardAxis, std::string_view>, 6> shard_axis_names{{
    {ShardAxis::replicate, "replicate"},
    {ShardAxis::column, "column"},
    {ShardAxis::row, "row"},
    {ShardAxis::vocabulary, "vocabulary"},
    {ShardAxis::reduce, "reduce"},
    {ShardAxis::drop, "drop"},
}};

}  // namespace

std::string_view to_string(ShardAxis shard_axis) noexcept {
  for (auto const& [known, text] : shard_axis_names) {
    if (known == shard_axis) return text;
  }
  return "unknown";
}

std::optional<ShardAxis> parse_shard_axis(std::string_view text) noexcept {
  for (auto const& [shard_axis, known] : shard_axis_names) {
    if (known == text) return shard_axis;
  }
  return std::nullopt;
}

}  // namespace crossrank::checkpoint
