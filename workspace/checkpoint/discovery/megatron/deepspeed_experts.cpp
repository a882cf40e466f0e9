#include "workspace/checkpoint/discovery/megatron/deepspeed_experts.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "workspace/checkpoint/discovery/megatron/deepspeed_names.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/multi_file_source.hpp"
#include "workspace/checkpoint/source/torch/megatron_source.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

using deepspeed::model_ending;
using deepspeed::optim_ending;

/// The numbers in the name of an expert's file.
struct ExpertName {
  int layer = 0;
  int expert = 0;
  int rank = 0;  ///< model-parallel rank
};

constexpr std::string_view gate_ending = ".gate.wg.weight";

/// Returns how many experts each layer with experts has, as the file of the other layers says: in its list, or in the
/// rows of the gates.
std::vector<std::int64_t> expert_counts(ShardSource const& model) {
  std::vector<std::int64_t> counts;
  auto const& attributes = model.attributes();
  if (auto const listed = attributes.find("num_experts"); listed != attributes.end() && listed->is_array()) {
    for (auto const& count : *listed) counts.push_back(count.is_number_integer() ? count.get<std::int64_t>() : 0);
  }
  if (!counts.empty()) return counts;
  for (auto const& tensor : model.tensors()) {
    if (tensor.name.ends_with(gate_ending) && !tensor.shape.empty()) counts.push_back(tensor.shape[0]);
  }
  return counts;
}

/// Parses "layer_0_expert_3_mp_rank_00_model_states.pt", or "expert_3_mp_rank_00_model_states.pt" of older releases.
std::optional<ExpertName> parse_expert(std::string_view name) {
  if (!name.ends_with(model_ending)) return std::nullopt;
  name.remove_suffix(model_ending.size());
  // The axes of the pattern serve as names for layer, expert and rank.
  auto found = match_shard_pattern("layer_{pp}_expert_{ep}_mp_rank_{tp}", name);
  if (!found) found = match_shard_pattern("expert_{ep}_mp_rank_{tp}", name);
  if (!found) return std::nullopt;
  return ExpertName{found->pp.value_or(0), found->ep.value_or(0), found->tp.value_or(0)};
}

using Experts = std::map<std::pair<int, int>, std::filesystem::path>;

/// Throws unless every rank has the same experts, counted from 0 in each layer.
void require_all(std::map<int, Experts> const& ranks, DirectoryListing const& listing) {
  std::map<int, int> counts;
  for (auto const& [rank, experts] : ranks) {
    for (auto const& [key, path] : experts) counts[key.first] = std::max(counts[key.first], key.second + 1);
  }
  for (auto const& [rank, experts] : ranks) {
    for (auto const& [layer, count] : counts) {
      for (int expert = 0; expert < count; ++expert) {
        if (experts.contains({layer, expert})) continue;
        refuse_listing(listing,
                       "expert " + std::to_string(expert) + " of layer " + std::to_string(layer) +
                           " is missing for rank " + std::to_string(rank),
                       std::to_string(experts.size()) + " expert files",
                       "copy all files of the save into one directory");
      }
    }
  }
}

/// Throws unless a rank has all experts of the model. Older releases have one file for an expert of all layers.
void require_experts(ExpertStates const& states, std::vector<std::int64_t> const& counts) {
  std::set<std::pair<int, int>> present;
  bool by_layer = true;
  for (auto const& path : states.experts) {
    auto const name = path.filename().string();
    by_layer = by_layer && name.starts_with("layer_");
    if (auto const expert = parse_expert(name)) present.emplace(expert->layer, expert->expert);
  }
  auto const layers = by_layer ? counts.size() : std::min<std::size_t>(counts.size(), 1);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (int expert = 0; expert < counts[layer]; ++expert) {
      if (present.contains({static_cast<int>(layer), expert})) continue;
      throw FormatError({.operation = "open shards",
                         .message = "expert " + std::to_string(expert) +
                                    (by_layer ? " of layer " + std::to_string(layer) : std::string()) +
                                    " is missing: the model has " + std::to_string(counts[layer]),
                         .got = std::to_string(states.experts.size()) + " expert files",
                         .resource = states.model.string(),
                         .hint = "copy all files of the save into one directory",
                         .section = to_string(ErrorSection::files)});
    }
  }
}

}  // namespace

std::map<int, ExpertStates> find_expert_states(DirectoryListing const& listing) {
  std::map<int, Experts> experts;
  std::map<int, ExpertStates> found;
  std::vector<std::string> optimizers;
  std::string partitioned;
  for (auto const& name : listing.files) {
    if (auto const expert = parse_expert(name)) {
      experts[expert->rank].emplace(std::pair(expert->layer, expert->expert), listing.path / name);
    } else if (name.ends_with(optim_ending)) {
      optimizers.push_back(name);
    } else if (name.ends_with(model_ending)) {
      auto const model = match_shard_pattern("mp_rank_{tp}", name.substr(0, name.size() - model_ending.size()));
      if (model) found[*model->tp].model = listing.path / name;
      if (name.find("zero_pp_rank_") != std::string::npos) partitioned = name;
    }
  }
  if (experts.empty()) return {};
  if (!partitioned.empty()) {
    refuse_listing(
        listing, "the model with experts was partitioned by ZeRO-3, and no file tells how the experts were partitioned",
        partitioned, "convert it with DeepSpeed's zero_to_fp32.py or ds_to_universal.py first");
  }
  require_all(experts, listing);
  for (auto& [rank, files] : experts) {
    if (found[rank].model.empty()) {
      auto number = std::to_string(rank);
      if (number.size() < 2) number.insert(0, 1, '0');
      refuse_listing(listing, "the file of the layers outside the experts is missing for rank " + std::to_string(rank),
                     {}, "copy mp_rank_" + number + "_model_states.pt to the directory");
    }
    for (auto& [key, path] : files) found[rank].experts.push_back(std::move(path));
  }
  for (auto& [rank, states] : found) {
    if (states.experts.empty())
      refuse_listing(listing, "rank " + std::to_string(rank) + " has no expert files", {}, {});
    states.left_out = optimizers;
  }
  return found;
}

std::shared_ptr<ShardSource const> open_expert_states(ExpertStates const& states, TorchSourceOptions const& options) {
  std::vector<std::shared_ptr<ShardSource const>> parts{open_megatron_rank(states.model, options)};
  require_experts(states, expert_counts(*parts.front()));
  for (auto const& expert : states.experts) parts.push_back(open_torch_archive(expert, options));
  return std::make_shared<MultiFileSource>(states.model.string(), std::move(parts),
                                           Json{{left_out_files, states.left_out}});
}

}  // namespace crossrank::checkpoint
