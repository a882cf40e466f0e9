#include "workspace/checkpoint/discovery/parts_or_ranks.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"
#include "workspace/checkpoint/discovery/shard_opener.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns the names that two files have in common.
std::vector<std::string> common_tensors(ShardSource const& a, ShardSource const& b) {
  std::unordered_set<std::string_view> names;
  for (auto const& tensor : a.tensors()) names.insert(tensor.name);
  std::vector<std::string> common;
  for (auto const& tensor : b.tensors()) {
    if (names.contains(tensor.name)) common.push_back(tensor.name);
  }
  return common;
}

/// Throws if two files have only some tensors in common. The files of ranks share most of them.
void require_ranks(ShardSource const& a, ShardSource const& b, std::vector<std::string> common) {
  auto const fewest = std::min(a.tensors().size(), b.tensors().size());
  if (2 * common.size() >= fewest) return;
  throw FormatError(
      {.operation = open_operation,
       .message = "two parts of one model have the same tensors, but too few for the files of ranks",
       .expected = "no common tensors, or most of them",
       .got = std::to_string(common.size()) + " of " + std::to_string(fewest) + ", " + common.front() + " among them",
       .resource = a.name() + " and " + b.name(),
       .hint = "remove the tensors from one file; for files of ranks, set `pattern`",
       .details = std::move(common),
       .section = to_string(ErrorSection::files)});
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
  auto const second = open_shard_file(ranks[1].files.front(), options);
  auto common = common_tensors(*first, *second);
  if (common.empty()) return;
  require_ranks(*first, *second, std::move(common));
  for (auto& rank : ranks) *rank.shard.numbers.rank -= from_zero ? 0 : 1;
  shards = std::move(ranks);
}

}  // namespace crossrank::checkpoint
