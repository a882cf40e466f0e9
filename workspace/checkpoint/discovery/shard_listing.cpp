#include "workspace/checkpoint/discovery/shard_listing.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/discovery/weight_files.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/model_key.hpp"
#include "workspace/nfs/state_file_names.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Throws an error about an index that contradicts its directory.
[[noreturn]] void refuse_index(std::string message, DirectoryListing const& listing, std::string const& name,
                               std::string got, std::string hint) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .got = std::move(got),
                     .resource = (listing.path / name).string(),
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::index)});
}

using PlaceKey = std::tuple<int, int, int, int>;
PlaceKey key_of(ShardNumbers const& numbers) {
  return {numbers.rank.value_or(-1), numbers.tp.value_or(-1), numbers.pp.value_or(-1), numbers.ep.value_or(-1)};
}

/// Throws unless all parts are present: 1 to y, or 0 to y - 1, for "x-of-y" names. Names without y count from 0 or 1.
void require_all_parts(std::vector<std::pair<int, std::string>> const& parts, int count,
                       DirectoryListing const& listing) {
  std::set<int> present;
  for (auto const& [part, name] : parts) present.insert(part);
  // Without a count, the last existing part is taken as the last one.
  bool const counted = count > 0;
  int const first = counted ? (present.contains(0) ? 0 : 1) : std::min(1, *present.begin());
  int const last = counted ? first + count - 1 : *present.rbegin();
  for (int part = first; part <= last; ++part) {
    if (present.contains(part)) continue;
    auto const& known = parts.front().second;
    auto wanted = parse_shard_name(known);
    wanted.part = part;
    auto const name = sibling_name(known, wanted);
    auto const which = std::to_string(part) + (counted ? " of " + std::to_string(count) : "");
    refuse_listing(listing,
                   "part " + which + " is missing" + (counted && first == 0 ? ", counting from 0" : "") +
                       (name.empty() ? "" : ": " + name),
                   std::to_string(parts.size()) + (parts.size() == 1 ? " part, " : " parts, such as ") + known,
                   "copy the missing file to the directory; an incomplete checkpoint is never merged");
  }
}

/// Groups files by the place in the grid that their names give.
std::vector<ShardFiles> group_by_place(std::vector<std::pair<std::string, ShardNumbers>> const& named,
                                       DirectoryListing const& listing) {
  std::map<PlaceKey, std::vector<std::pair<std::string, ShardNumbers>>> groups;
  for (auto const& entry : named) groups[key_of(entry.second)].push_back(entry);
  std::vector<ShardFiles> shards;
  for (auto& [key, files] : groups) {
    ShardFiles shard;
    shard.shard = {files.front().first, files.front().second};
    std::vector<std::pair<int, std::string>> parts;
    for (auto const& [name, numbers] : files) {
      shard.files.push_back(listing.path / name);
      if (numbers.part) parts.emplace_back(*numbers.part, name);
    }
    if (files.size() > 1 && parts.size() != files.size()) {
      refuse_listing(listing, "two files belong to the same rank", files[0].first + " and " + files[1].first,
                     "remove the file that does not belong to the checkpoint, or set `pattern`");
    }
    if (!parts.empty()) require_all_parts(parts, files.front().second.parts.value_or(0), listing);
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::vector<ShardFiles> state_images(DirectoryListing const& listing) {
  std::set<int> ranks;
  for (auto const& name : listing.files) {
    if (auto const file = workspace::parse_state_file_name(name); file && !file->of_gather) ranks.insert(file->rank);
  }
  std::vector<ShardFiles> shards;
  for (int const rank : ranks) {
    auto const files = workspace::files_of_rank(listing.files, rank);
    ShardFiles shard;
    shard.images = true;
    shard.shard.numbers.rank = rank;
    for (auto const& state : workspace::require_one_writer(files, rank, listing.path.string(), open_operation))
      shard.files.push_back(listing.path / state.name());
    shard.shard.name = shard.files.front().filename().string();
    shards.push_back(std::move(shard));
  }
  return shards;
}

/// Makes one shard of all files.
std::vector<ShardFiles> one_shard(DirectoryListing const& listing, std::vector<std::string> const& names) {
  ShardFiles shard;
  shard.shard.name = listing.path.string();
  for (auto const& name : names) shard.files.push_back(listing.path / name);
  return {std::move(shard)};
}

std::vector<ShardFiles> by_pattern(DirectoryListing const& listing, std::string const& pattern) {
  std::vector<std::pair<std::string, ShardNumbers>> named;
  for (auto const& name : listing.unreachable) {
    if (match_shard_pattern(pattern, name)) refuse_unreachable(listing.path / name);
  }
  for (auto const& name : listing.files) {
    if (auto const numbers = match_shard_pattern(pattern, name)) named.emplace_back(name, *numbers);
  }
  if (named.empty())
    refuse_listing(
        listing, "no file matches the pattern \"" + pattern + "\"", {},
        "write the name of a file in this directory, with {rank}, or {tp} and {pp}, in place of its numbers");
  return group_by_place(named, listing);
}

/// Returns the listing of a directory's names that cannot be read.
DirectoryListing lost_files(DirectoryListing const& listing) {
  return {.path = listing.path, .files = listing.unreachable};
}

/// Returns the "weight_map" of an index: the file of each tensor.
Json weight_map_of(DirectoryListing const& listing, std::string const& name) {
  auto const json = read_json_object(listing.path / name, codec::listing_limits, codec::RepeatedKey::refuse);
  auto const map = json->find("weight_map");
  if (map == json->end() || !map->is_object())
    refuse_index("the index has no weight_map", listing, name, {}, "remove the index or write it again");
  return *map;
}

/// The contents of an index.
struct ShardIndex {
  std::vector<std::string> files{};    ///< sorted
  std::vector<std::string> tensors{};  ///< in the order of the index
};

/// Returns whether every weight file has a rank in its name and the index lists none of them.
bool is_of_another_model(Json const& weight_map, std::vector<std::string> const& files) {
  if (files.empty()) return false;
  if (!std::ranges::all_of(files, [](auto const& file) { return parse_shard_name(file).has_place(); })) return false;
  return std::ranges::none_of(weight_map, [&](Json const& file) {
    return file.is_string() && std::ranges::find(files, file.get_ref<std::string const&>()) != files.end();
  });
}

/// Reads the index of one format, if there is one. An index of another model than `weights`, which all have a rank in
/// their names, counts as none. Throws `FormatError` if a listed file is missing or the index is damaged.
std::optional<ShardIndex> read_index(DirectoryListing const& listing, WeightFormat family,
                                     std::vector<std::string> const& weights) {
  auto const name = index_of(listing, family);
  if (name.empty()) {
    auto const lost = index_of(lost_files(listing), family);
    if (!lost.empty()) refuse_unreachable(listing.path / lost);
    return std::nullopt;
  }
  auto const map = weight_map_of(listing, name);
  if (is_of_another_model(map, weights)) return std::nullopt;
  ShardIndex index;
  std::set<std::string_view> files;
  for (auto const& [tensor, file] : map.items()) {
    if (!file.is_string() || file.get_ref<std::string const&>().find('/') != std::string::npos)
      refuse_index("the index has no plain file name for \"" + tensor + "\"", listing, name, file.dump(),
                   "write the index again");
    files.insert(file.get_ref<std::string const&>());
    index.tensors.push_back(tensor);
  }
  index.files.assign(files.begin(), files.end());
  for (auto const& file : index.files) {
    if (!listing.has(file))
      refuse_index("a file that the index lists is missing: " + file, listing, name, {},
                   "copy the missing file to the directory");
  }
  if (index.files.empty())
    refuse_index("the index lists no tensors", listing, name, {}, "remove the index or write it again");
  return index;
}

/// Throws if a weight file cannot be read. It would count as missing, and a missing last rank is not always
/// noticed.
void require_reachable_weights(DirectoryListing const& listing, WeightFormat family) {
  auto const lost = weights_of(lost_files(listing), family);
  if (!lost.empty()) refuse_unreachable(listing.path / lost.front());
}

/// Makes one shard of each directory of a rank.
std::vector<ShardFiles> rank_directories(DirectoryListing const& listing, WeightFormat family) {
  std::vector<ShardFiles> shards;
  for (auto const& name : listing.directories) {
    auto const numbers = parse_shard_name(name);
    if (!numbers.has_place()) continue;
    auto const inner = list_directory(listing.path / name);
    if (index_of(inner, family).empty()) require_reachable_weights(inner, family);
    auto const files = weights_of(inner, family);
    if (files.empty()) continue;
    ShardFiles shard;
    shard.shard = {name, numbers};
    auto index = read_index(inner, family, {});
    for (auto const& file : index ? index->files : files) shard.files.push_back(inner.path / file);
    if (index) shard.listed = std::move(index->tensors);
    shards.push_back(std::move(shard));
  }
  return shards;
}

/// Groups the files of one format in one directory into shards by their names.
std::vector<ShardFiles> by_names(DirectoryListing const& listing, std::vector<std::string> const& files,
                                 AnnouncedGrid const& announced) {
  std::vector<std::pair<std::string, ShardNumbers>> placed;
  std::vector<std::pair<int, std::string>> parts;
  int count = 0;
  for (auto const& name : files) {
    auto const numbers = parse_shard_name(name);
    if (numbers.has_place()) placed.emplace_back(name, numbers);
    if (numbers.parts) {
      parts.emplace_back(numbers.part.value_or(0), name);
      count = std::max(count, *numbers.parts);
    }
  }
  if (placed.size() == files.size()) return group_by_place(placed, listing);
  if (files.size() == 1 && announced.tp <= 1 && parts.empty()) return one_shard(listing, files);
  if (placed.empty() && parts.size() == files.size()) {
    require_all_parts(parts, count, listing);
    return one_shard(listing, files);
  }
  auto const& odd = placed.empty() ? files.front() : *std::find_if(files.begin(), files.end(), [&](auto const& name) {
    return !parse_shard_name(name).has_place();
  });
  auto const pattern = common_pattern(files);
  refuse_listing(listing, "the file names do not give the rank of each file",
                 std::to_string(files.size()) + " weight files, " + odd + " among them",
                 pattern.empty()
                     ? "if they are several models, give the file of one; if they are ranks, set `pattern`, such as "
                       "\"part_{rank}.safetensors\""
                     : "if the numbers are ranks, set `pattern` to \"" + pattern + "\"");
}

constexpr WeightFormat families[] = {WeightFormat::safetensors, WeightFormat::torch};

bool has_checkpoint(DirectoryListing const& listing) {
  for (auto const family : families) {
    if (!weights_of(listing, family).empty()) return true;
  }
  return std::any_of(listing.files.begin(), listing.files.end(), [](auto const& name) {
    auto const state = workspace::parse_state_file_name(name);
    return name.ends_with(".distcp") || name == "latest" || name == "latest_checkpointed_iteration.txt" ||
           (state && !state->of_gather);
  });
}

/// Collects the directories below `listing` that hold a checkpoint; only the topmost one of each branch.
void find_below(DirectoryListing const& listing, std::string const& way, int levels, std::vector<std::string>& found) {
  constexpr std::size_t max_found = 100;
  for (auto const& name : listing.directories) {
    if (name.starts_with('.') || found.size() == max_found) continue;
    try {
      auto const inner = list_directory(listing.path / name);
      bool const ranks = std::any_of(inner.directories.begin(), inner.directories.end(),
                                     [](auto const& folder) { return parse_shard_name(folder).has_place(); });
      if (has_checkpoint(inner) || ranks) {
        found.push_back(way + name);
      } else if (levels > 1) {
        find_below(inner, way + name + "/", levels - 1, found);
      }
    } catch (IoError const&) {
      // An unreadable directory is not a useful suggestion.
    }
  }
}

std::vector<std::string> checkpoints_below(DirectoryListing const& listing) {
  constexpr int levels = 3;
  std::vector<std::string> found;
  find_below(listing, {}, levels, found);
  std::stable_partition(found.begin(), found.end(), [](std::string const& way) {
    return kind_of_key(way.substr(way.rfind('/') + 1)) != KeyKind::training;  // the model, then its optimizer
  });
  return found;
}

}  // namespace

std::vector<std::string> listed_tensors(DirectoryListing const& listing, WeightFormat family) {
  std::vector<std::string> tensors;
  auto const name = index_of(listing, family);
  if (name.empty()) return tensors;
  auto const map = weight_map_of(listing, name);
  for (auto const& [tensor, file] : map.items()) tensors.push_back(tensor);
  return tensors;
}

std::vector<ShardFiles> find_shards(DirectoryListing const& listing, std::string const& pattern,
                                    AnnouncedGrid const& announced) {
  if (!pattern.empty()) return by_pattern(listing, pattern);
  if (auto images = state_images(listing); !images.empty()) return images;
  for (auto const family : families) {
    auto const files = weights_of(listing, family);
    if (auto index = read_index(listing, family, files)) {
      auto shards = one_shard(listing, index->files);
      shards.front().listed = std::move(index->tensors);
      return shards;
    }
    require_reachable_weights(listing, family);
    if (!files.empty()) return by_names(listing, files, announced);
  }
  for (auto const family : families) {
    if (auto shards = rank_directories(listing, family); !shards.empty()) return shards;
  }
  if (std::any_of(listing.files.begin(), listing.files.end(),
                  [](auto const& name) { return name.ends_with(".distcp"); }))
    refuse_listing(listing, "the distributed checkpoint has no .metadata, which is written last", {},
                   "copy .metadata too (a copy with * leaves it out), or use a save that was finished");
  if (auto const below = checkpoints_below(listing); !below.empty()) {
    refuse_listing(listing, "the directory has no shards, but a directory below it has", list_text(below, 4),
                   "did you mean " + (listing.path / below.front()).string() +
                       "? A directory of a rank has the rank in its name: rank_0");
  }
  refuse_listing(listing, "the directory has no shards",
                 std::to_string(listing.files.size()) + " files, none in a known format",
                 "pass the directory that holds the checkpoint's files, or their names by `pattern`");
}

}  // namespace crossrank::checkpoint
