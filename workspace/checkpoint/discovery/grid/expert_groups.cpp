#include "workspace/checkpoint/discovery/grid/expert_groups.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

using ExpertNumbers = std::set<std::int64_t>;

/// Maps each tensor-parallel rank of one stage to the expert-parallel ranks of its shards.
using ByTensorRank = std::map<int, std::set<int>>;

/// Returns the group of each shard; shards with the same experts are one group. Returns nothing unless all groups have
/// the same number of shards.
std::vector<int> groups_of(std::vector<ExpertNumbers> const& ranks) {
  std::map<ExpertNumbers, int> seen;
  std::vector<int> groups;
  for (auto const& experts : ranks)
    groups.push_back(seen.emplace(experts, static_cast<int>(seen.size())).first->second);
  for (std::size_t group = 0; group < seen.size(); ++group) {
    auto const size = std::count(groups.begin(), groups.end(), static_cast<int>(group));
    if (as_size(size) * seen.size() != groups.size()) return {};
  }
  return groups;
}

bool are_disjoint(std::vector<ExpertNumbers> const& ranks) {
  std::set<ExpertNumbers> const kinds(ranks.begin(), ranks.end());
  ExpertNumbers all;
  std::size_t count = 0;
  for (auto const& kind : kinds) {
    all.insert(kind.begin(), kind.end());
    count += kind.size();
  }
  return all.size() == count;
}

/// Returns for each rank the numbers of its experts in the first layer with experts.
std::vector<ExpertNumbers> numbered_experts(ShardSet const& set) {
  auto ranks = per_rank<ExpertNumbers>(set.tp);
  std::string before;
  int stage = 0;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    if (!before.empty() && set.places[i].pp != stage) continue;
    for (auto const& tensor : set.sources[i]->tensors()) {
      auto const expert = find_expert(tensor.name);
      if (!expert) continue;
      if (before.empty()) {
        before = expert->before;
        stage = set.places[i].pp;
      }
      if (expert->before == before) at_rank(ranks, set.places[i].tp).insert(expert->number);
    }
  }
  return ranks;
}

/// Returns into how many pieces the layers outside the experts are sharded, judged by an attention's output projection;
/// 0 if unknown.
std::int64_t dense_pieces(ShardSet const& set, ModelSizes const& sizes) {
  auto const whole = sizes[SizeName::value];
  for (auto const& tensor : set.sources.front()->tensors()) {
    auto const parsed = parse_tensor_name(tensor.name);
    auto const last = split_name(parsed.module).back();
    bool const projects = last == "o_proj" || last == "linear_proj" || last == "out_proj";
    if (!whole || !projects || parsed.role != TensorRole::weight || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] > 0 && *whole % tensor.shape[1] == 0) return *whole / tensor.shape[1];
  }
  return 0;
}

/// Returns the number of groups over which the experts of a stack are spread, judged by its length; 1 if every rank has
/// all experts.
int groups_of_stacks(ShardSet const& set, ModelSizes const& sizes) {
  auto const experts = sizes[SizeName::experts];
  if (!experts) return 1;
  for (auto const& source : set.sources) {
    for (auto const& tensor : source->tensors()) {
      auto const parsed = parse_tensor_name(tensor.name);
      if (parsed.role != TensorRole::weight || tensor.shape.size() < 3) continue;
      auto const elements = split_name(parsed.module);
      auto const own = tensor.shape[0];
      bool const stacked = elements.size() > 1 && elements[elements.size() - 2] == "experts";
      if (!stacked || own < 1 || own >= *experts || *experts % own != 0 || set.tp % (*experts / own) != 0) continue;
      return static_cast<int>(*experts / own);
    }
  }
  return 1;
}

void set_groups(ShardSet& set, int count) {
  set.moe_ep = count;
  for (auto& place : set.places) place.moe = place.tp % count;
}

}  // namespace

std::optional<ShardGrid> fold_experts(ShardGrid const& grid) {
  std::map<int, ByTensorRank> stages;
  for (auto const& place : grid.places) {
    if (!stages[place.pp][place.tp].insert(place.ep).second) return std::nullopt;
  }
  auto const& first = stages.begin()->second;
  auto const cells = first.begin()->second.size();
  auto folded = grid;
  folded.ep = static_cast<int>(cells);
  bool const complete =
      static_cast<int>(stages.size()) == grid.pp &&
      std::all_of(stages.begin(), stages.end(), [&](auto const& stage) { return stage.second == first; });
  if (!complete || static_cast<int>(first.size()) != grid.tp || static_cast<int>(cells) >= grid.ep) return std::nullopt;
  // The first shards of all tensor-parallel ranks form one cell, the second shards the next one, and so on.
  std::vector<std::set<int>> experts(cells);
  for (auto const& [tp, numbers] : first) {
    if (numbers.size() != cells) return std::nullopt;
    std::size_t cell = 0;
    for (auto const number : numbers) experts[cell++].insert(number);
  }
  std::set<int> all;
  for (auto const& numbers : experts) {
    if (numbers.size() != experts.front().size() || first.size() % numbers.size() != 0) return std::nullopt;
    all.insert(numbers.begin(), numbers.end());
  }
  if (static_cast<int>(all.size()) != grid.ep || all.size() != cells * experts.front().size()) return std::nullopt;
  folded.moe_ep = static_cast<int>(experts.front().size());
  for (auto& place : folded.places) {
    auto const& numbers = first.at(place.tp);
    auto const cell = std::distance(numbers.begin(), numbers.find(place.ep));
    auto const& group = experts[as_size(cell)];
    place.moe = static_cast<int>(std::distance(group.begin(), group.find(place.ep)));
    place.ep = static_cast<int>(cell);
  }
  return folded;
}

void find_expert_groups(ShardSet& set, int announced) {
  if (set.tp < 2 || set.ep > 1) return;
  ModelSizes const sizes(set.config);
  // If every rank has the other layers whole, the ranks are expert-parallel ranks.
  bool const is_sharded = announced > 1 || dense_pieces(set, sizes) == set.tp;
  if (!is_sharded) return;
  auto const ranks = numbered_experts(set);
  auto const& own = ranks.front();
  if (own.empty()) {
    if (announced <= 1) set_groups(set, groups_of_stacks(set, sizes));
    return;
  }
  bool const alike = std::all_of(ranks.begin(), ranks.end(), [&](auto const& other) { return other == own; });
  if (!alike) {
    auto const groups = groups_of(ranks);
    if (groups.empty() || !are_disjoint(ranks)) return;
    set.moe_ep = *std::max_element(groups.begin(), groups.end()) + 1;
    for (auto& place : set.places) place.moe = at_rank(groups, place.tp);
    return;
  }
  // Each rank counts its experts from 0.
  auto const experts = sizes[SizeName::experts];
  auto const count = static_cast<std::int64_t>(own.size());
  bool const part =
      experts && *own.begin() == 0 && *own.rbegin() == count - 1 && count < *experts && *experts % count == 0;
  if (announced <= 1 && part && set.tp % (*experts / count) == 0) set_groups(set, static_cast<int>(*experts / count));
}

}  // namespace crossrank::checkpoint
