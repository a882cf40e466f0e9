#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/discovery/grid/expert_groups.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/nfs/state_file_names.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

int positive(Json const& object, char const* key) {
  auto const found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return 0;
  auto const value = found->get<std::int64_t>();
  return value > 0 && value <= 1'000'000 ? static_cast<int>(value) : 0;
}

int first_positive(Json const& object, std::initializer_list<char const*> keys) {
  for (auto const* key : keys) {
    if (int const value = positive(object, key); value > 0) return value;
  }
  return 0;
}

std::string grid_text(int tp, int pp, int ep) {
  return std::to_string(tp) + " x " + std::to_string(pp) + " x " + std::to_string(ep) + " (tensor x pipeline x expert)";
}

/// Returns the number of places in a grid. Configs and names of files may give sizes up to a million each.
std::int64_t places_in(ShardGrid const& grid) {
  return std::int64_t{grid.tp} * std::int64_t{grid.pp} * std::int64_t{grid.ep};
}

/// Completes the missing size so that the product of all sizes is `count`.
ShardGrid complete(AnnouncedGrid const& announced, std::int64_t count, std::string const& where) {
  ShardGrid grid;
  grid.ep = std::max(1, announced.ep);
  grid.pp = std::max(1, announced.pp);
  auto const others = std::int64_t{grid.pp} * grid.ep;
  grid.tp = announced.tp > 0 ? announced.tp : static_cast<int>(std::max<std::int64_t>(1, count / others));
  auto const row = std::int64_t{grid.tp} * grid.ep;
  if (announced.tp > 0 && announced.pp == 0 && count % row == 0) grid.pp = static_cast<int>(count / row);
  if (places_in(grid) == count) return grid;
  throw UsageError({.operation = open_operation,
                    .message = "the number of shards does not match the grid",
                    .expected = std::to_string(places_in(grid)) + " shards for " + grid_text(grid.tp, grid.pp, grid.ep),
                    .got = std::to_string(count),
                    .resource = where,
                    .hint = count < places_in(grid) ? "add the missing ranks, or set `tp` and `pp`"
                                                    : "set `tp`, `pp` and `ep` to the sizes of the job"});
}

/// No job has so many ranks. Beyond them, a number in a name is something else.
constexpr int most_ranks = 1 << 20;

void require_ranks(NamedShard const& shard, std::string const& where) {
  auto const& numbers = shard.numbers;
  for (auto const& number : {numbers.rank, numbers.ranks, numbers.tp, numbers.pp, numbers.ep, numbers.tp_size,
                             numbers.pp_size, numbers.ep_size}) {
    if (number.value_or(0) < most_ranks) continue;
    throw UsageError({.operation = open_operation,
                      .message = "a number in the name of a file is too large for a rank: " + shard.name,
                      .expected = "below " + std::to_string(most_ranks),
                      .got = std::to_string(*number),
                      .resource = where,
                      .hint = "rename the file, or set `pattern`"});
  }
}

ShardPlace place_of_rank(int rank, ShardGrid const& grid) {
  return {.tp = rank % grid.tp, .pp = rank / (grid.tp * grid.ep), .ep = rank / grid.tp % grid.ep};
}

std::string place_text(ShardPlace const& place, ShardGrid const& grid) {
  auto text = "tensor-parallel rank " + std::to_string(place.tp);
  if (grid.pp > 1) text += ", stage " + std::to_string(place.pp);
  if (grid.ep > 1) text += ", expert rank " + std::to_string(place.ep);
  return text;
}

/// Returns the file name of a missing shard in parentheses; empty if it cannot be derived.
std::string file_text(NamedShard const& known, ShardPlace const& place, ShardGrid const& grid) {
  auto wanted = known.numbers;
  if (wanted.rank) {
    wanted.rank = (place.pp * grid.ep + place.ep) * grid.tp + place.tp;
    // The name of a state image has a number that is unique to its writer.
    if (workspace::parse_state_file_name(known.name)) return " (rank_" + std::to_string(*wanted.rank) + "_state.*)";
  } else {
    if (wanted.tp) wanted.tp = place.tp;
    if (wanted.pp) wanted.pp = place.pp;
    if (wanted.ep) wanted.ep = place.ep;
  }
  auto const name = sibling_name(known.name, wanted);
  return name.empty() ? name : " (" + name + ")";
}

/// Throws `FormatError` unless every place has exactly one shard.
void require_each_once(std::vector<NamedShard> const& shards, ShardGrid const& grid, std::string const& where) {
  std::map<std::tuple<int, int, int>, std::string> seen;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    auto const& place = grid.places[i];
    auto const [at, fresh] = seen.emplace(std::tuple(place.pp, place.ep, place.tp), shards[i].name);
    if (fresh) continue;
    throw FormatError({.operation = open_operation,
                       .message = "two shards belong to the same rank (" + place_text(place, grid) + ")",
                       .got = at->second + " and " + shards[i].name,
                       .resource = where,
                       .hint = "remove the file that does not belong to the checkpoint, or set `pattern`",
                       .section = to_string(ErrorSection::files)});
  }
  constexpr std::size_t most_listed = 1'000;
  std::vector<std::string> missing;
  for (std::int64_t number = 0; number < places_in(grid) && missing.size() < most_listed; ++number) {
    ShardPlace const place{.tp = static_cast<int>(number % grid.tp),
                           .pp = static_cast<int>(number / grid.tp / grid.ep),
                           .ep = static_cast<int>(number / grid.tp % grid.ep)};
    if (!seen.contains({place.pp, place.ep, place.tp}))
      missing.push_back(place_text(place, grid) + file_text(shards.front(), place, grid));
  }
  if (missing.empty()) return;
  throw FormatError({.operation = open_operation,
                     .message = "a shard is missing: " + list_text(missing, 1),
                     .expected = std::to_string(places_in(grid)) + " shards",
                     .got = std::to_string(shards.size()) + ", such as " + shards.front().name,
                     .resource = where,
                     .hint = "copy the missing file to the directory; an incomplete checkpoint is never merged",
                     .details = missing,
                     .section = to_string(ErrorSection::files)});
}

}  // namespace

AnnouncedGrid announced_grid(Json const& config) {
  AnnouncedGrid grid;
  if (!config.is_object()) return grid;
  auto const mapping = config.find("mapping");
  if (mapping != config.end() && mapping->is_object()) {
    grid.tp = first_positive(*mapping, {"tp_size"});
    grid.pp = first_positive(*mapping, {"pp_size"});
    grid.moe_ep = first_positive(*mapping, {"moe_ep_size"});
    auto const moe_tp = first_positive(*mapping, {"moe_tp_size"});
    if (grid.moe_ep == 0 && moe_tp > 0) grid.moe_ep = grid.tp / moe_tp;
    return grid;
  }
  grid.tp = first_positive(config, {"tensor_model_parallel_size", "tensor_parallel_size", "tp_size"});
  grid.pp = first_positive(config, {"pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size"});
  grid.ep = first_positive(config, {"expert_model_parallel_size", "expert_parallel_size"});
  // The configs of models such as DeepSeek have an "ep_size" of 1, which says nothing about the shards.
  if (auto const size = first_positive(config, {"ep_size"}); grid.ep == 0 && size > 1) grid.ep = size;
  return grid;
}

ShardGrid place_shards(std::vector<NamedShard> const& shards, AnnouncedGrid announced, std::string const& where) {
  int named_count = 0;
  for (auto const& shard : shards) {
    require_ranks(shard, where);
    named_count = std::max(named_count, shard.numbers.ranks.value_or(0));
    announced.tp = std::max(announced.tp, shard.numbers.tp_size.value_or(0));
    announced.pp = std::max(announced.pp, shard.numbers.pp_size.value_or(0));
    announced.ep = std::max(announced.ep, shard.numbers.ep_size.value_or(0));
  }
  bool const by_rank =
      std::all_of(shards.begin(), shards.end(), [](auto const& shard) { return shard.numbers.rank.has_value(); });
  ShardGrid grid;
  if (by_rank) {
    std::int64_t highest = 0;
    for (auto const& shard : shards) highest = std::max<std::int64_t>(highest, *shard.numbers.rank);
    auto const announced_count =
        announced.tp > 0
            ? std::int64_t{announced.tp} * std::int64_t{std::max(1, announced.pp)} * std::max(1, announced.ep)
            : 0;
    // A gap in the numbers is a missing rank, whatever the sizes are.
    grid = complete(announced, std::max({highest + 1, announced_count, std::int64_t{named_count}}), where);
    for (auto const& shard : shards) grid.places.push_back(place_of_rank(*shard.numbers.rank, grid));
  } else {
    for (auto const& shard : shards) {
      grid.places.push_back(
          {.tp = shard.numbers.tp.value_or(0), .pp = shard.numbers.pp.value_or(0), .ep = shard.numbers.ep.value_or(0)});
      auto const& place = grid.places.back();
      grid.tp = std::max(grid.tp, place.tp + 1);
      grid.pp = std::max(grid.pp, place.pp + 1);
      grid.ep = std::max(grid.ep, place.ep + 1);
    }
    grid.tp = std::max(grid.tp, announced.tp);
    grid.pp = std::max(grid.pp, announced.pp);
    grid.ep = std::max(grid.ep, announced.ep);
    if (grid.tp > 1 && grid.ep > 1) grid = fold_experts(grid).value_or(grid);
  }
  require_each_once(shards, grid, where);
  return grid;
}

}  // namespace crossrank::checkpoint
