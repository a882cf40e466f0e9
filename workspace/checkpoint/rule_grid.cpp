#include "workspace/checkpoint/rule_grid.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/rule_pattern.hpp"

namespace crossrank::checkpoint {
namespace {

/// A number inside a name: "model.layers." 7 ".mlp..."
struct Numbered {
  std::string_view before{};
  std::int64_t number = 0;
  std::string_view after{};
};

template <std::size_t N>
std::optional<Numbered> find_number(std::string_view name, std::array<std::string_view, N> const& containers) {
  auto const parts = split_name(name);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (!is_number(parts[i]) || std::find(containers.begin(), containers.end(), parts[i - 1]) == containers.end())
      continue;
    auto const begin = static_cast<std::size_t>(parts[i].data() - name.data());
    std::int64_t number = 0;
    std::from_chars(parts[i].data(), parts[i].data() + parts[i].size(), number);
    return Numbered{name.substr(0, begin), number, name.substr(begin + parts[i].size())};
  }
  return std::nullopt;
}

std::optional<Numbered> find_layer(std::string_view name) {
  static constexpr std::array<std::string_view, 5> containers{"layers", "h", "blocks", "block", "layer"};
  return find_number(name, containers);
}

/// "...experts.linear_fc1.weight7": the weights of experts that one module multiplies together.
std::optional<Numbered> find_grouped_expert(std::string_view name) {
  if (name.find("experts.linear_fc") == std::string_view::npos) return std::nullopt;
  auto const last = name.substr(name.rfind('.') + 1);
  auto const digits = last.find_first_of("0123456789");
  if (digits == std::string_view::npos || !is_number(last.substr(digits))) return std::nullopt;
  if (last.substr(0, digits) != "weight" && last.substr(0, digits) != "bias") return std::nullopt;
  auto const number = last.substr(digits);
  std::int64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return Numbered{name.substr(0, name.size() - number.size()), value, name.substr(name.size())};
}

std::optional<Numbered> find_expert(std::string_view name) {
  static constexpr std::array<std::string_view, 2> containers{"experts", "local_experts"};
  auto const found = find_number(name, containers);
  return found ? found : find_grouped_expert(name);
}

/// Numbers that each member (stage, expert rank) has.
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

[[noreturn]] void refuse(std::string const& what, std::string const& where, std::string const& problem) {
  throw FormatError({.operation = "merge rules",
                     .message = what + " " + problem,
                     .expected = "numbers that go on from one rank to the next, or start at 0 on each",
                     .resource = where,
                     .remedy = "check --pp and --ep, or that all files are of one model",
                     .section = "name"});
}

std::string replaced(Numbered const& place, std::int64_t offset) {
  return std::string(place.before) + std::to_string(place.number + offset) + std::string(place.after);
}

}  // namespace

RuleGrid::RuleGrid(ShardSet const& set, ModelSizes const& sizes) {
  if (set.pp > 1) number_layers(set, sizes);
  if (set.ep > 1) number_experts(set, sizes);
}

void RuleGrid::number_layers(ShardSet const& set, ModelSizes const& sizes) {
  std::map<std::string, Members> stacks;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    for (auto const& tensor : set.sources[i]->tensors()) {
      if (auto const layer = find_layer(tensor.name))
        stacks[std::string(layer->before)][set.places[i].pp].insert(layer->number);
    }
  }
  for (auto const& [before, stages] : stacks) {
    if (disjoint(stages)) continue;
    if (!all_count_from_zero(stages)) refuse("the layers of the pipeline stages", before + "*", "overlap in part");
    std::int64_t offset = 0;
    for (auto const& [stage, layers] : stages) {
      layer_offsets_[{before, stage, 0}] = offset;
      offset += static_cast<std::int64_t>(layers.size());
    }
    if (auto const said = sizes[SizeName::layers]; said && offset > *said) {
      refuse("the layers of the pipeline stages", before + "*",
             "are " + std::to_string(offset) + " in all where the config has " + std::to_string(*said));
    }
  }
}

void RuleGrid::number_experts(ShardSet const& set, ModelSizes const& sizes) {
  std::map<std::pair<std::string, int>, Members> stacks;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    auto const place = set.places[i];
    for (auto const& tensor : set.sources[i]->tensors()) {
      if (auto const expert = find_expert(tensor.name)) {
        stacks[{std::string(expert->before), place.pp}][place.ep].insert(expert->number);
      }
    }
  }
  auto const said = sizes[SizeName::experts];
  for (auto const& [key, members] : stacks) {
    auto const& before = key.first;
    if (disjoint(members)) continue;
    bool const whole = said && std::all_of(members.begin(), members.end(), [&](auto const& member) {
                         return static_cast<std::int64_t>(member.second.size()) == *said;
                       });
    if (whole) continue;  // every expert rank has all of them: copies
    if (!all_count_from_zero(members))
      refuse("the experts of the expert-parallel ranks", before + "*", "overlap in part");
    std::int64_t offset = 0;
    for (auto const& [rank, experts] : members) {
      expert_offsets_[{before, key.second, rank}] = offset;
      offset += static_cast<std::int64_t>(experts.size());
    }
    if (said && offset != *said) {
      refuse("the experts of the expert-parallel ranks", before + "*",
             "are " + std::to_string(offset) + " in all where the config has " + std::to_string(*said));
    }
  }
}

std::string RuleGrid::global_name(std::string_view name, ShardPlace place) const {
  std::string result(name);
  // Experts first: their key holds the layer's number as the source has it.
  if (auto const expert = find_expert(name)) {
    auto const found = expert_offsets_.find({std::string(expert->before), place.pp, place.ep});
    if (found != expert_offsets_.end()) result = replaced(*expert, found->second);
  }
  if (auto const layer = find_layer(result)) {
    auto const found = layer_offsets_.find({std::string(layer->before), place.pp, 0});
    if (found != layer_offsets_.end()) result = replaced(*layer, found->second);
  }
  return result;
}

}  // namespace crossrank::checkpoint
