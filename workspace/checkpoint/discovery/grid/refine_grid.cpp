#include "workspace/checkpoint/discovery/grid/refine_grid.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/at_rank.hpp"
#include "lib/core/round_up.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/model_sizes.hpp"
#include "workspace/checkpoint/model/numbered_name.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

using Names = std::set<std::string_view>;
using Numbers = std::set<std::int64_t>;

Names names_of(ShardSource const& source) {
  Names names;
  for (auto const& tensor : source.tensors()) names.insert(tensor.name);
  return names;
}

bool differ_in_experts_only(Names const& a, Names const& b) {
  std::vector<std::string_view> difference;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(difference));
  return std::all_of(difference.begin(), difference.end(),
                     [](auto name) { return name.find("expert") != std::string_view::npos; });
}

bool counts_from_zero(Numbers const& numbers) {
  return !numbers.empty() && *numbers.begin() == 0 &&
         *numbers.rbegin() == static_cast<std::int64_t>(numbers.size()) - 1;
}

/// A block of ranks as a possible stage: its layer numbers by the prefix of their names, and all other names.
struct Stage {
  std::map<std::string_view, Numbers> stacks{};
  Names outside{};
};

Stage stage_of(Names const& names) {
  Stage stage;
  for (auto const name : names) {
    if (auto const layer = find_layer(name)) {
      stage.stacks[layer->before].insert(layer->number);
    } else {
      stage.outside.insert(name);
    }
  }
  return stage;
}

bool share_nothing(std::vector<Stage> const& stages) {
  Names all;
  std::size_t count = 0;
  for (auto const& stage : stages) {
    all.insert(stage.outside.begin(), stage.outside.end());
    count += stage.outside.size();
  }
  return all.size() == count;
}

/// Returns whether the layers of the stages form one model: the numbers are disjoint, or start at 0 in each stage.
bool are_stages(std::vector<Stage> const& stages, std::optional<std::int64_t> layers) {
  std::map<std::string_view, std::vector<Numbers>> stacks;
  for (auto const& stage : stages) {
    for (auto const& [before, numbers] : stage.stacks) stacks[before].push_back(numbers);
  }
  auto const longest = std::max_element(stacks.begin(), stacks.end(),
                                        [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
  // All stages with layers have one stack in common. Blocks without a common stack are different models.
  auto const layered =
      std::count_if(stages.begin(), stages.end(), [](auto const& stage) { return !stage.stacks.empty(); });
  if (longest == stacks.end() || std::ssize(longest->second) != layered) return false;
  Numbers all;
  std::size_t count = 0;
  for (auto const& numbers : longest->second) {
    all.insert(numbers.begin(), numbers.end());
    count += numbers.size();
  }
  bool const fits = !layers || static_cast<std::int64_t>(count) <= *layers;
  if (all.size() == count) return fits;
  bool const local = std::all_of(longest->second.begin(), longest->second.end(), counts_from_zero);
  return local && (layers ? static_cast<std::int64_t>(count) == *layers : share_nothing(stages));
}

/// Returns the number of experts of a rank that counts its experts from 0.
std::optional<std::int64_t> local_experts(Names const& names) {
  std::map<std::string_view, Numbers> stacks;
  for (auto const name : names) {
    if (auto const expert = find_expert(name)) stacks[expert->before].insert(expert->number);
  }
  if (stacks.empty()) return std::nullopt;
  auto const& first = stacks.begin()->second;
  bool const alike =
      std::all_of(stacks.begin(), stacks.end(), [&](auto const& stack) { return stack.second == first; });
  return alike && counts_from_zero(first) ? std::optional(static_cast<std::int64_t>(first.size())) : std::nullopt;
}

/// Divides the ranks into blocks of `tp` consecutive ranks. `size` and `place` are the members of the other dimension.
void divide(ShardSet& set, int tp, int ShardSet::*size, int ShardPlace::*place) {
  set.*size = static_cast<int>(set.sources.size()) / tp;
  set.tp = tp;
  for (auto& at : set.places) {
    int const rank = at.tp;
    at.tp = rank % tp;
    at.*place = rank / tp;
  }
}

/// Throws an error about a last block with fewer ranks than the others.
[[noreturn]] void refuse_short_block(ShardSet const& set, std::size_t block) {
  auto const count = set.sources.size();
  auto const all = round_up(count, block);
  auto const path = std::filesystem::path(set.sources.front()->name());
  auto wanted = parse_shard_name(path.filename().string());
  if (wanted.rank) wanted.rank = static_cast<int>(count);
  auto const file = wanted.rank ? sibling_name(path.filename().string(), wanted) : std::string();
  throw FormatError(
      {.operation = open_operation,
       .message = "rank " + std::to_string(count) + " of " + std::to_string(all) + " is missing" +
                  (file.empty() ? "" : ": " + file),
       .expected = std::to_string(block) + " ranks for each part of the model",
       .got = std::to_string(count % block) + " for the part in " + set.sources.back()->name(),
       .resource = path.parent_path().string(),
       .hint = "copy the missing file to the directory, or set `tp`, `pp` and `ep` to the sizes of the job",
       .section = to_string(ErrorSection::files)});
}

}  // namespace

void refine_grid(ShardSet& set, AnnouncedGrid announced) {
  auto const count = set.sources.size();
  if (set.pp > 1 || set.ep > 1 || announced.pp > 0 || announced.ep > 0 || announced.tp > 0 || count < 2) return;
  std::vector<Names> names(count);
  for (std::size_t i = 0; i < count; ++i) at_rank(names, set.places[i].tp) = names_of(*set.sources[i]);
  ModelSizes const sizes(set.config);
  std::size_t block = 1;
  while (block < count && names[block] == names[0]) ++block;
  if (block == count) {
    auto const own = local_experts(names[0]);
    auto const all = sizes[SizeName::experts];
    if (!own || !all || *own >= *all || *all % *own != 0 || static_cast<std::int64_t>(count) % (*all / *own) != 0)
      return;
    return divide(set, static_cast<int>(static_cast<std::int64_t>(count) / (*all / *own)), &ShardSet::ep,
                  &ShardPlace::ep);
  }
  std::vector<Stage> stages;
  bool experts_only = true;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % block != 0 && names[i] != names[i - 1]) return;  // not in blocks; later checks report the reason
    if (i % block != 0) continue;
    stages.push_back(stage_of(names[i]));
    experts_only = experts_only && differ_in_experts_only(names[0], names[i]);
  }
  bool const staged = are_stages(stages, sizes[SizeName::layers]);
  if (count % block != 0 && (experts_only || staged)) refuse_short_block(set, block);
  if (count % block != 0) return;
  if (experts_only) return divide(set, static_cast<int>(block), &ShardSet::ep, &ShardPlace::ep);
  if (staged) divide(set, static_cast<int>(block), &ShardSet::pp, &ShardPlace::pp);
}

}  // namespace crossrank::checkpoint
