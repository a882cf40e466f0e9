#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/rules/expert_stack.hpp"

namespace crossrank::checkpoint {

MergeRule RuleSet::State::expert_groups() const {
  return {.kind = MergeExpertGroups{set.moe_ep},
          .reason = std::to_string(set.moe_ep) + " groups of experts among the ranks"};
}

bool RuleSet::State::has_expert_groups(RankTensors const& asked) const {
  if (set.moe_ep <= 1 || asked.ranks != as_size(set.tp) || asked.tensors.size() != asked.ranks) return false;
  auto const configured = sizes[SizeName::experts];
  auto const& layer = layers_of(asked.sources.front()).at(parse_tensor_name(asked.tensors.front()->name).module);
  auto const* const weight = layer[TensorRole::weight];
  // If each rank has all experts, there is nothing to merge.
  return !configured || weight == nullptr || weight->shape.empty() || weight->shape[0] != *configured;
}

/// Returns whether another rank of the same cell has some tensor of this expert, so that the ranks hold pieces of it.
bool RuleSet::State::others_have_expert_of(std::string_view name, std::size_t source) const {
  auto const expert = expert_prefix(name);
  auto const& at = set.places[source];
  for (std::size_t other = 0; other < set.sources.size(); ++other) {
    auto const& there = set.places[other];
    if (other != source && there.pp == at.pp && there.ep == at.ep && experts_of(other).contains(expert)) return true;
  }
  return false;
}

bool RuleSet::State::is_on_some_ranks(std::string_view name, RankTensors const& asked) const {
  if (!is_of_routed_experts(name)) return false;
  if (asked.tensors.size() == 1) return !others_have_expert_of(name, asked.sources.front());
  auto const group = set.places[asked.sources.front()].moe;
  return set.moe_ep > 1 && asked.tensors.size() * as_size(set.moe_ep) == asked.ranks &&
         std::all_of(asked.sources.begin(), asked.sources.end(),
                     [&](auto source) { return set.places[source].moe == group; });
}

bool RuleSet::State::are_different_experts(std::string_view name, RankTensors const& asked) const {
  if (set.moe_ep <= 1) return false;
  auto const global = [&](std::size_t source) { return grid.global_name(name, set.places[source]); };
  auto const first = global(asked.sources.front());
  return std::any_of(asked.sources.begin(), asked.sources.end(), [&](auto source) { return global(source) != first; });
}

bool RuleSet::State::has_expert_dimension(TensorName const& parsed, RankTensors const& asked) const {
  auto const& tensor = *asked.tensors.front();
  auto const* const weight = layers_of(asked.sources.front()).at(parsed.module)[TensorRole::weight];
  return weight != nullptr && !tensor.shape.empty() && tensor.shape[0] == weight->shape[0];
}

void RuleSet::State::require_all_experts(TensorName const& parsed, SourceTensor const& tensor) const {
  auto const configured = sizes[SizeName::experts];
  auto const there = tensor.shape.empty() ? 0 : tensor.shape[0];
  if (parsed.role != TensorRole::weight || !configured || there < 1 || there >= *configured || *configured % there != 0)
    return;
  throw FormatError({.operation = "merge rules",
                     .message = "the experts of other expert-parallel ranks are missing",
                     .expected = std::to_string(*configured) + " experts by the config",
                     .got = std::to_string(there),
                     .resource = tensor.name,
                     .hint = "copy the missing files there, or pass `ep` if they exist",
                     .section = to_string(ErrorSection::coverage)});
}

void RuleSet::State::concatenate_stacks(MergeRule& merged, TensorName const& parsed, RankTensors const& asked) const {
  auto const first = asked.sources.front();
  auto const& tensor = *asked.tensors.front();
  // A tensor without a dimension of experts is one value for all of them.
  if (!has_expert_dimension(parsed, asked)) return;
  std::vector<std::int64_t> lengths;
  std::set<std::pair<int, int>> counted;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    if (set.places[i].pp != set.places[first].pp) continue;
    if (!counted.emplace(set.places[i].ep, set.places[i].moe).second) continue;
    auto const layer = layers_of(i).find(parsed.module);
    auto const* const other = layer == layers_of(i).end() ? nullptr : layer->second[TensorRole::weight];
    if (other != nullptr && !other->shape.empty()) lengths.push_back(other->shape[0]);
  }
  if (!stacks_concatenate(tensor.name, lengths, sizes)) return;
  merged.ep_axis = 0;
  if (merged.combines_values() && asked.ranks == 1) merged.kind = KeepReplica{};
  merged.reason += "; the experts of " + std::to_string(lengths.size()) + " expert-parallel ranks follow each other";
}

}  // namespace crossrank::checkpoint
