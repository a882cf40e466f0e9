#include "workspace/checkpoint/discovery/parts_or_ranks.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/discovery/shard_opener.hpp"

namespace crossrank::checkpoint {
namespace {

bool share_a_tensor(ShardSource const& a, ShardSource const& b) {
  std::unordered_set<std::string_view> names;
  for (auto const& tensor : a.tensors()) names.insert(tensor.name);
  return std::any_of(b.tensors().begin(), b.tensors().end(),
                     [&](auto const& tensor) { return names.contains(tensor.name); });
}

}  // namespace

void distinguish_parts_from_ranks(std::vector<ShardFiles>& shards, TorchSourceOptions const& options) {
  if (shards.size() != 1 || shards.front().files.size() < 2 || shards.front().shard.numbers.has_place()) return;
  std::vector<ShardFiles> ranks;
  bool from_zero = false;
  for (auto const& file : shards.front().files) {
    auto const name = file.filename().string();
    auto const numbers = parse_shard_name(name);
    if (!numbers.part || !numbers.parts) return;
    from_zero = from_zero || *numbers.part == 0;
    ranks.push_back(
        {.shard = {.name = name, .numbers = {.rank = numbers.part, .ranks = numbers.parts}}, .files = {file}});
  }
  auto const first = open_shard_file(ranks[0].files.front(), options);
  if (!share_a_tensor(*first, *open_shard_file(ranks[1].files.front(), options))) return;
  for (auto& rank : ranks) *rank.shard.numbers.rank -= from_zero ? 0 : 1;
  shards = std::move(ranks);
}

}  // namespace crossrank::checkpoint
