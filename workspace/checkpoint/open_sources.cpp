#include "workspace/checkpoint/open_sources.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/dcp_source.hpp"
#include "workspace/checkpoint/file_pool.hpp"
#include "workspace/checkpoint/safetensors_source.hpp"
#include "workspace/checkpoint/shard_grid.hpp"
#include "workspace/checkpoint/shard_listing.hpp"
#include "workspace/checkpoint/torch_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr char const* operation = "checkpoint open";
// Larger files beside the weights are no part of a model's description.
constexpr std::uintmax_t largest_companion = std::uintmax_t{256} << 20;

bool is_weights(std::string const& name) {
  static constexpr std::string_view endings[] = {".safetensors", ".safetensors.index.json", ".pt",    ".pth",
                                                 ".bin",         ".bin.index.json",         ".distcp"};
  return std::any_of(std::begin(endings), std::end(endings), [&](auto ending) { return name.ends_with(ending); });
}

std::vector<fs::path> companions_of(DirectoryListing const& listing) {
  std::vector<fs::path> found;
  for (auto const& name : listing.files) {
    std::error_code error;
    if (name.starts_with('.') || is_weights(name)) continue;
    if (fs::file_size(listing.path / name, error) > largest_companion || error) continue;
    found.push_back(listing.path / name);
  }
  return found;
}

/// The highest of a rank's state images that opens and whose data matches its checksums.
std::shared_ptr<ShardSource const> open_image(ShardFiles const& shard, std::shared_ptr<FilePool> const& pool) {
  for (std::size_t i = 0; i < shard.files.size(); ++i) {
    try {
      auto source = std::make_shared<SafetensorsSource>(shard.files[i].string(), std::vector{shard.files[i]}, pool);
      auto const& image = source->images().front();
      if (image.checked()) return source;
    } catch (FormatError const&) {
      if (i + 1 == shard.files.size()) throw;
    }
  }
  throw FormatError({.operation = operation,
                     .message = "the state image carries no checksums",
                     .resource = shard.files.front().string(),
                     .remedy = "another tool changed it: write it again",
                     .section = "header"});
}

std::shared_ptr<ShardSource const> open_shard(ShardFiles const& shard, std::shared_ptr<FilePool> const& pool) {
  if (shard.images) return open_image(shard, pool);
  auto name = shard.files.size() == 1 ? shard.files.front().string() : shard.shard.name;
  return std::make_shared<SafetensorsSource>(std::move(name), shard.files, pool);
}

ShardSet set_of(std::shared_ptr<ShardSource const> source) {
  ShardSet set;
  set.sources.push_back(std::move(source));
  set.places.emplace_back();
  return set;
}

ShardSet open_safetensors_file(fs::path const& path) {
  auto const pool = std::make_shared<FilePool>();
  ShardSet set;
  set.sources.push_back(std::make_shared<SafetensorsSource>(path.string(), std::vector{path}, pool));
  set.places.emplace_back();
  return set;
}

void take_description(ShardSet& set, DirectoryListing const& listing) {
  auto const& directory = listing.path;
  if (auto config = read_json_object(directory / "config.json")) set.config = std::move(*config);
  for (auto const* name : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    auto quantization = read_json_object(directory / name);
    if (!quantization) continue;
    set.quantization = std::move(*quantization);
    break;
  }
  auto const inside = set.config.find("quantization_config");
  if (set.quantization.empty() && inside != set.config.end() && inside->is_object()) set.quantization = *inside;
  set.companions = companions_of(listing);
}

AnnouncedGrid sizes_from(ShardSetOptions const& options, Json const& config) {
  auto grid = announced_grid(config);
  if (options.tp > 0) grid = {.tp = options.tp, .pp = options.pp, .ep = options.ep};
  if (options.pp > 0) grid.pp = options.pp;
  if (options.ep > 0) grid.ep = options.ep;
  return grid;
}

/// A config that speaks of the whole job may be at odds with a directory that holds one merged model.
void place(ShardSet& set, std::vector<ShardFiles> const& shards, AnnouncedGrid announced, fs::path const& path) {
  bool const single = shards.size() == 1 && !shards.front().shard.numbers.has_place();
  if (single) {
    set.places.emplace_back();
    return;
  }
  std::vector<NamedShard> named;
  for (auto const& shard : shards) named.push_back(shard.shard);
  auto grid = place_shards(named, announced, path.string());
  set.tp = grid.tp;
  set.pp = grid.pp;
  set.ep = grid.ep;
  set.places = std::move(grid.places);
  refine_grid(set, announced);
}

/// Orders the shards by stage, expert rank and tensor rank.
void sort_shards(ShardSet& set) {
  std::vector<std::size_t> order(set.sources.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto const key = [&](std::size_t i) {
    auto const& at = set.places[i];
    return std::tuple(at.pp, at.ep, at.tp);
  };
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
  ShardSet sorted = set;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sorted.sources[i] = set.sources[order[i]];
    sorted.places[i] = set.places[order[i]];
  }
  set = std::move(sorted);
}

}  // namespace

ShardSet open_shard_set(fs::path const& path, ShardSetOptions const& options) {
  std::error_code error;
  if (fs::is_regular_file(path, error))
    return is_torch_archive(path) ? set_of(open_torch_archive(path)) : open_safetensors_file(path);
  auto const listing = list_directory(path);
  if (find_dcp(path) != DcpFlavour::none) {
    auto whole = set_of(open_dcp(path));
    take_description(whole, listing);
    return whole;
  }
  ShardSet set;
  take_description(set, listing);
  auto const announced = sizes_from(options, set.config);
  auto const shards = find_shards(listing, options.pattern, announced);
  auto const pool = std::make_shared<FilePool>();
  // First the names, then the files: a missing rank is told before a damaged one.
  for (auto const& shard : shards) set.sources.push_back(open_shard(shard, pool));
  place(set, shards, announced, path);
  sort_shards(set);
  auto const& first = shards.front();
  if (set.config.empty() && first.files.front().parent_path() != path) {
    take_description(set, list_directory(first.files.front().parent_path()));
  }
  return set;
}

}  // namespace crossrank::checkpoint
