#include "workspace/checkpoint/discovery/open_shard_set.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/parallel_for.hpp"
#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/discovery/checkpoint_pointer.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/option_range.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"
#include "workspace/checkpoint/source/torch/megatron_dist.hpp"
#include "workspace/checkpoint/discovery/megatron/deepspeed_experts.hpp"
#include "workspace/checkpoint/discovery/megatron/deepspeed_files.hpp"
#include "workspace/checkpoint/discovery/grid/expert_groups.hpp"
#include "workspace/checkpoint/source/file_pool.hpp"
#include "workspace/checkpoint/source/safetensors_source.hpp"
#include "workspace/checkpoint/source/shard_metadata.hpp"
#include "workspace/checkpoint/discovery/flat_parameters.hpp"
#include "workspace/checkpoint/discovery/interrupted_commit.hpp"
#include "workspace/checkpoint/discovery/model_description.hpp"
#include "workspace/checkpoint/discovery/grid/one_model.hpp"
#include "workspace/checkpoint/discovery/parts_or_ranks.hpp"
#include "workspace/checkpoint/discovery/grid/refine_grid.hpp"
#include "workspace/checkpoint/discovery/grid/shard_grid.hpp"
#include "workspace/checkpoint/discovery/shard_listing.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"
#include "workspace/checkpoint/discovery/grid/matching_ranks.hpp"
#include "workspace/checkpoint/discovery/shard_opener.hpp"
#include "workspace/checkpoint/discovery/vllm_names.hpp"
#include "workspace/checkpoint/discovery/megatron/training_arguments.hpp"
#include "workspace/checkpoint/discovery/weight_files.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
ShardSet set_of(std::shared_ptr<ShardSource const> source, OpenedFrom opened_from) {
  ShardSet set{.opened_from = opened_from};
  set.sources.push_back(std::move(source));
  set.places.emplace_back();
  return set;
}

fs::path folder_of(fs::path const& file) { return file.has_parent_path() ? file.parent_path() : "."; }

bool has_config_file(ShardSet const& set) {
  return std::any_of(set.sidecars.begin(), set.sidecars.end(),
                     [](auto const& companion) { return companion.name == "config.json"; });
}

AnnouncedGrid sizes_from(ShardSetOptions const& options, Json const& config) {
  auto grid = announced_grid(config);
  if (options.tp > 0) grid = {.tp = options.tp, .pp = options.pp, .ep = options.ep, .moe_ep = grid.moe_ep};
  if (options.moe_ep > 0) grid.moe_ep = options.moe_ep;
  if (options.pp > 0) grid.pp = options.pp;
  if (options.ep > 0) grid.ep = options.ep;
  return grid;
}

/// Returns whether anything but the files themselves tells how many ranks there are: options, config, names, or
/// metadata.
bool is_counted(ShardSet const& set, std::vector<NamedShard> const& shards, AnnouncedGrid const& announced) {
  auto const note = shard_metadata_of(*set.sources.front());
  return announced.tp > 0 || announced.pp > 0 || announced.ep > 0 ||
         (note && as_size(note->count) == set.sources.size()) ||
         std::any_of(shards.begin(), shards.end(),
                     [](auto const& shard) { return shard.numbers.ranks || shard.numbers.tp_size; });
}

/// Sets the grid and the places of the shards. A single shard without a rank in its name is a whole model, even if the
/// config gives sizes of a grid.
void place(ShardSet& set, std::vector<ShardFiles> const& shards, AnnouncedGrid announced, fs::path const& path) {
  bool const single = shards.size() == 1 && !shards.front().shard.numbers.has_place();
  std::vector<NamedShard> named;
  for (auto const& shard : shards) named.push_back(shard.shard);
  if (single) {
    set.places.emplace_back();
    require_matching_ranks(set, named, path.string());  // a renamed file of a rank is no model
    return;
  }
  auto grid = place_shards(named, announced, path.string());
  set.tp = grid.tp;
  set.pp = grid.pp;
  set.ep = grid.ep;
  set.places = std::move(grid.places);
  require_matching_ranks(set, named, path.string());
  set.uncounted = !is_counted(set, named, announced);
  set.moe_ep = grid.moe_ep;
  if (announced.moe_ep > 0 && set.tp > 1 && grid.moe_ep == 1) {
    set.moe_ep = announced.moe_ep;
    for (auto& at : set.places) at.moe = at.tp % set.moe_ep;
  }
  if (set.tp % set.moe_ep != 0) {
    throw FormatError({.operation = open_operation,
                       .message = "the number of expert groups does not divide the tensor-parallel size",
                       .expected = "\"moe_tp_size\" times \"moe_ep_size\" = " + std::to_string(set.tp),
                       .got = "\"moe_ep_size\" of " + std::to_string(set.moe_ep),
                       .resource = path.string(),
                       .hint = "correct `moe_ep`, or \"mapping\" in config.json",
                       .section = to_string(ErrorSection::config)});
  }
  // Consecutive ranks with different experts and sharded layers are one tensor-parallel group.
  if (grid.moe_ep == 1) find_expert_groups(set, announced.moe_ep);
  if (set.moe_ep == 1) refine_grid(set, announced);
  require_one_model(set);
}

/// Sorts the shards by stage, expert rank and tensor rank.
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

/// Reads the model's description, which is beside the shards, in their directories, or in the saved training arguments.
void describe(ShardSet& set, DirectoryListing const& listing, fs::path const& shards) {
  take_description(set, listing);
  if (!has_config_file(set) && shards != listing.path) take_description(set, list_directory(shards));
  if (set.config.empty()) set.config = config_of_arguments(set.sources.front()->attributes());
}

/// Opens one source per model-parallel rank. `open` makes the source of a rank, `files` returns the files whose names
/// identify the rank.
template <class Found, class Open, class Files>
ShardSet open_ranks(DirectoryListing const& listing, std::map<int, Found> const& ranks, ShardSetOptions const& options,
                    Open const& open, Files const& files) {
  ShardSet set;
  std::vector<ShardFiles> shards;
  for (auto const& [rank, found] : ranks) {
    set.sources.push_back(open(found));
    auto const named = files(found);
    shards.push_back({.shard = {.name = named.front().filename().string(), .numbers = {.tp = rank}}, .files = named});
  }
  describe(set, listing, listing.path);
  place(set, shards, sizes_from(options, set.config), listing.path);
  return set;
}

ShardSet open_experts(DirectoryListing const& listing, std::map<int, ExpertStates> const& ranks,
                      ShardSetOptions const& options, TorchSourceOptions const& torch) {
  return open_ranks(
      listing, ranks, options, [&](ExpertStates const& states) { return open_expert_states(states, torch); },
      [](ExpertStates const& states) { return std::vector{states.model}; });
}

ShardSet open_zero(DirectoryListing const& listing, std::map<int, DeepSpeedFiles> const& ranks,
                   ShardSetOptions const& options, TorchSourceOptions const& torch) {
  return open_ranks(
      listing, ranks, options, [&](DeepSpeedFiles const& files) { return open_deepspeed(files, torch); },
      [](DeepSpeedFiles const& files) { return files.model_states; });
}

/// Returns the tensors of a source's index that are in no file of the source.
std::vector<std::string> absent_of(ShardSource const& source, std::vector<std::string> listed) {
  if (listed.empty()) return listed;
  std::unordered_set<std::string_view> present;
  for (auto const& tensor : source.tensors()) present.insert(tensor.name);
  std::erase_if(listed, [&](auto const& name) { return present.contains(name); });
  return listed;
}

/// Returns whether a directory has an index, which then describes its files.
bool has_index(DirectoryListing const& listing) {
  return !index_of(listing, WeightFormat::safetensors).empty() || !index_of(listing, WeightFormat::torch).empty();
}

bool has_name_of_vllm(ShardFiles const& shard) {
  auto const name = shard.files.front().filename().string();
  return name.starts_with("model-rank-") && name.find("-part-") != std::string::npos;
}

/// Returns the layout of fused layers. Saved states of vLLM and shards of `split` hold a piece of every part.
FusedLayout fused_layout_of(ShardSet const& set) {
  auto const note = shard_metadata_of(*set.sources.front());
  return set.saved_by_vllm || (note && !note->saved) ? FusedLayout::per_rank : FusedLayout::automatic;
}

ShardSet open_shards(DirectoryListing const& listing, ShardSetOptions const& options, TorchSourceOptions const& torch) {
  ShardSet set{.opened_from = OpenedFrom::files};
  auto const beside = read_json_object(listing.path / "config.json").value_or(Json::object());
  // Names come before contents, so that a missing rank is reported before a damaged one.
  auto shards = find_shards(listing, options.pattern, sizes_from(options, beside));
  if (!has_index(listing)) distinguish_parts_from_ranks(shards, torch);
  set.sources.resize(shards.size());
  codec::parallel_open(shards.size(), [&](std::size_t i) { set.sources[i] = open_shard(shards[i], torch); });
  for (std::size_t i = 0; options.model_key.empty() && i < shards.size(); ++i) {
    auto absent = absent_of(*set.sources[i], std::move(shards[i].listed));
    std::move(absent.begin(), absent.end(), std::back_inserter(set.absent));
  }
  describe(set, listing, shards.front().files.front().parent_path());
  set.saved_by_vllm = has_name_of_vllm(shards.front());
  if (set.saved_by_vllm) rename_from_vllm(set);
  auto trained = announced_grid(config_of_arguments(set.sources.front()->attributes()));
  if (options.pp > 0) trained.pp = options.pp;
  if (options.ep > 0) trained.ep = options.ep;
  for (auto& shard : shards) resolve_second_number(shard.shard, trained);
  place(set, shards, sizes_from(options, set.config), listing.path);
  sort_shards(set);
  set.fused = fused_layout_of(set);
  return set;
}

bool has_weights(DirectoryListing const& listing) {
  return !weights_of(listing, WeightFormat::safetensors).empty() || !weights_of(listing, WeightFormat::torch).empty();
}

/// Opens a file. If it is the model of its folder, the other files there describe it.
ShardSet open_file(fs::path const& path, TorchSourceOptions const& torch) {
  auto set = set_of(open_shard_file(path, torch), OpenedFrom::files);
  auto const folder = folder_of(path);
  std::error_code error;
  if (fs::symlink_status(folder / "config.json", error).type() == fs::file_type::not_found) return set;
  auto const listing = list_directory(folder);
  auto const count =
      weights_of(listing, WeightFormat::safetensors).size() + weights_of(listing, WeightFormat::torch).size();
  auto const name = path.filename();
  if (count == 1 || name == "model.safetensors" || name == "pytorch_model.bin") describe(set, listing, folder);
  return set;
}

ShardSet open_any(fs::path const& path, ShardSetOptions const& options, TorchSourceOptions const& torch) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    auto const name = path.filename().string();
    bool const is_index = is_weights(name) && name.ends_with(".index.json");
    return is_index ? open_any(folder_of(path), options, torch) : open_file(path, torch);
  }
  auto const listing = list_directory(path);
  require_no_interrupted_commit(listing);
  if (auto const flavour = find_dcp(path); flavour != DcpFlavour::none) {
    auto whole = set_of(open_dcp(path, {.crc = options.crc,
                                        .model_key = options.model_key,
                                        .extra_globals = options.extra_globals,
                                        .pool = torch.pool}),
                        OpenedFrom::pieces);
    describe(whole, listing, path);
    whole.known_whole = flavour == DcpFlavour::torch && is_megatron_dist(path);
    // Safetensors files have the places of their pieces, but not the lengths of the whole tensors.
    whole.uncounted = flavour == DcpFlavour::safetensors;
    if (flavour == DcpFlavour::safetensors)
      whole.absent = absent_of(*whole.sources.front(), listed_tensors(listing, WeightFormat::safetensors));
    return whole;
  }
  if (!options.pattern.empty()) return open_shards(listing, options, torch);
  require_no_universal(listing);
  if (auto const experts = find_expert_states(listing); !experts.empty())
    return open_experts(listing, experts, options, torch);
  if (auto const zero = find_deepspeed(listing); !zero.empty()) return open_zero(listing, zero, options, torch);
  auto const latest = has_weights(listing) ? std::nullopt : follow_pointer(listing);
  if (!latest) return open_shards(listing, options, torch);
  auto set = open_any(*latest, options, torch);
  if (!has_config_file(set)) take_description(set, listing);
  return set;
}

/// `model_key` names a key around the model. Safetensors files have none, so it would have no effect.
void require_no_key(ShardSet const& set, ShardSetOptions const& options, fs::path const& path) {
  if (options.model_key.empty() || options.model_key == ".") return;
  auto const is_safetensors = [](auto const& source) {
    return dynamic_cast<SafetensorsSource const*>(&source->stored()) != nullptr;
  };
  if (!std::all_of(set.sources.begin(), set.sources.end(), is_safetensors)) return;
  throw UsageError({.operation = open_operation,
                    .message = "`model_key` has no effect on safetensors files",
                    .expected = "torch files or a distributed checkpoint",
                    .got = options.model_key,
                    .resource = path.string(),
                    .hint = "omit `model_key`; use `rules` to rename or leave out tensors"});
}

}  // namespace

codec::CrcPolicy crc_policy(ArchiveCrc crc) {
  if (crc == ArchiveCrc::warn) return codec::CrcPolicy::warn;
  return crc == ArchiveCrc::ignore ? codec::CrcPolicy::ignore : codec::CrcPolicy::require;
}

ShardSetOptions shard_set_options(PlanOptions const& options) {
  return {.tp = options.tp,
          .pp = options.pp,
          .ep = options.ep,
          .moe_ep = options.moe_ep,
          .fused = options.fused_layout,
          .pattern = options.pattern,
          .crc = crc_policy(options.crc),
          .model_key = options.model_key,
          .extra_globals = options.extra_globals};
}

ShardSet open_shard_set(fs::path const& path, ShardSetOptions const& options) {
  require_at_least(0, open_operation, "tp", options.tp);
  require_at_least(0, open_operation, "pp", options.pp);
  require_at_least(0, open_operation, "ep", options.ep);
  require_at_least(0, open_operation, "moe_ep", options.moe_ep);
  TorchSourceOptions const torch{.crc = options.crc,
                                 .extra_globals = options.extra_globals,
                                 .model_key = options.model_key,
                                 .pool = std::make_shared<FilePool>()};
  auto set = open_any(path, options, torch);
  require_no_key(set, options, path);
  require_no_flat_parameters(set);
  if (options.fused != FusedLayout::automatic) set.fused = options.fused;
  set.files = torch.pool->stamps();
  return set;
}

}  // namespace crossrank::checkpoint
