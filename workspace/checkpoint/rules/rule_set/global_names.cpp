#include "workspace/checkpoint/rules/rule_set/global_names.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/rules/towers.hpp"

namespace crossrank::checkpoint {
namespace {

/// The numbers of each member (stage or expert rank).
using Members = std::map<int, std::set<std::int64_t>>;

bool disjoint(Members const& members) {
  std::set<std::int64_t> all;
  std::size_t count = 0;
  for (auto const& [member, numbers] : members) {
    all.insert(numbers.begin(), numbers.end());
    count += numbers.size();
  }
  return all.size() == count;
}

bool counts_from_zero(std::set<std::int64_t> const& numbers) {
  return *numbers.begin() == 0 && *numbers.rbegin() == static_cast<std::int64_t>(numbers.size()) - 1;
}

bool all_count_from_zero(Members const& members) {
  return std::all_of(members.begin(), members.end(),
                     [](auto const& member) { return counts_from_zero(member.second); });
}

[[noreturn]] void refuse_numbers(std::string const& what, std::string const& where, std::string const& problem) {
  throw FormatError({.operation = "merge rules",
                     .message = what + " " + problem,
                     .expected = "numbers that continue from one rank to the next, or start at 0 on each",
                     .resource = where,
                     .hint = "check `pp` and `ep`, or that all files are of one model",
                     .section = to_string(ErrorSection::name)});
}

std::string replaced(NumberedName const& place, std::int64_t offset) {
  return std::string(place.before) + std::to_string(place.number + offset) + std::string(place.after);
}

}  // namespace

GlobalNames::GlobalNames(ShardSet const& set, ModelSizes const& sizes) : groups_(set.moe_ep) {
  if (set.pp > 1) number_layers(set, sizes);
  if (set.ep > 1 || set.moe_ep > 1) number_experts(set, sizes);
}

void GlobalNames::number_layers(ShardSet const& set, ModelSizes const& sizes) {
  std::map<std::string, Members> stacks;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    for (auto const& tensor : set.sources[i]->tensors()) {
      if (auto const layer = find_layer(tensor.name))
        stacks[std::string(layer->before)][set.places[i].pp].insert(layer->number);
    }
  }
  Towers const towers(set.config);
  for (auto const& [before, stages] : stacks) {
    if (disjoint(stages)) continue;
    // Every stage may hold a tower: copies, which are compared.
    if (towers.sizes_of(before + "0") != nullptr) continue;
    if (!all_count_from_zero(stages))
      refuse_numbers("the layers of the pipeline stages", before + "*", "overlap in part");
    std::int64_t offset = 0;
    for (auto const& [stage, layers] : stages) {
      layer_offsets_[{before, stage, 0}] = offset;
      offset += static_cast<std::int64_t>(layers.size());
    }
    if (auto const configured = sizes[SizeName::layers]; configured && offset > *configured) {
      refuse_numbers("the layers of the pipeline stages", before + "*",
                     "are " + std::to_string(offset) + " in all where the config has " + std::to_string(*configured));
    }
  }
}

void GlobalNames::number_experts(ShardSet const& set, ModelSizes const& sizes) {
  std::map<std::pair<std::string, int>, Members> stacks;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    auto const place = set.places[i];
    for (auto const& tensor : set.sources[i]->tensors()) {
      if (auto const expert = find_expert(tensor.name)) {
        stacks[{std::string(expert->before), place.pp}][member(place)].insert(expert->number);
      }
    }
  }
  auto const configured = sizes[SizeName::experts];
  for (auto const& [key, members] : stacks) {
    auto const& before = key.first;
    if (disjoint(members)) continue;
    bool const whole = configured && std::all_of(members.begin(), members.end(), [&](auto const& member) {
                         return static_cast<std::int64_t>(member.second.size()) == *configured;
                       });
    if (whole) continue;  // every expert rank has all of them: copies
    if (!all_count_from_zero(members))
      refuse_numbers("the experts of the expert-parallel ranks", before + "*", "overlap in part");
    std::int64_t offset = 0;
    for (auto const& [rank, experts] : members) {
      expert_offsets_[{before, key.second, rank}] = offset;
      offset += static_cast<std::int64_t>(experts.size());
    }
    if (configured && offset != *configured) {
      refuse_numbers("the experts of the expert-parallel ranks", before + "*",
                     "are " + std::to_string(offset) + " in all where the config has " + std::to_string(*configured));
    }
  }
}

std::string GlobalNames::global_name(std::string_view name, ShardPlace place) const {
  std::string result(name);
  // Experts first, because their key contains the layer number of the source.
  if (auto const expert = find_expert(name)) {
    auto const found = expert_offsets_.find({std::string(expert->before), place.pp, member(place)});
    if (found != expert_offsets_.end()) result = replaced(*expert, found->second);
  }
  if (auto const layer = find_layer(result)) {
    auto const found = layer_offsets_.find({std::string(layer->before), place.pp, 0});
    if (found != layer_offsets_.end()) result = replaced(*layer, found->second);
  }
  return result;
}

}  // namespace crossrank::checkpoint
