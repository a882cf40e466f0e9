#include "workspace/checkpoint/discovery/megatron/deepspeed_files.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "workspace/checkpoint/discovery/megatron/deepspeed_names.hpp"
#include "workspace/checkpoint/source/shard_names.hpp"

namespace crossrank::checkpoint {
namespace {

using deepspeed::model_ending;
using deepspeed::optim_ending;

/// The ranks in the name of a ZeRO file.
struct ZeroName {
  std::optional<int> data{};  ///< data-parallel rank; model states of stages 1 and 2 have none
  int model = 0;
};

std::optional<ZeroName> parse(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  for (std::string_view const start : {"bf16_zero_pp_rank_", "zero_pp_rank_"}) {
    if (!name.starts_with(start)) continue;
    auto const found = match_shard_pattern("{pp}_mp_rank_{tp}", name.substr(start.size()));
    if (found) return ZeroName{found->pp, *found->tp};
  }
  auto const found = match_shard_pattern("mp_rank_{tp}", name);
  return found ? std::optional(ZeroName{std::nullopt, *found->tp}) : std::nullopt;
}

using ByData = std::map<int, std::filesystem::path>;

/// Returns the name of another rank's file, derived from an existing one.
std::string name_of_rank(std::string name, int there, int rank) {
  auto const mark = "pp_rank_" + std::to_string(there) + "_";
  auto const at = name.find(mark);
  return at == std::string::npos ? std::string()
                                 : name.replace(at, mark.size(), "pp_rank_" + std::to_string(rank) + "_");
}

std::vector<std::filesystem::path> all_of(ByData const& files, DirectoryListing const& listing) {
  std::vector<std::filesystem::path> out;
  for (auto const& [rank, path] : files) {
    auto const wanted = static_cast<int>(out.size());
    if (rank != wanted) {
      auto const name = name_of_rank(path.filename().string(), rank, wanted);
      refuse_listing(listing,
                     "the states of data-parallel rank " + std::to_string(wanted) + " are missing" +
                         (name.empty() ? "" : ": " + name),
                     std::to_string(files.size()) + (files.size() == 1 ? " file, " : " files, ") + "rank " +
                         std::to_string(rank) + " comes next",
                     "copy all files of the save into one directory");
    }
    out.push_back(path);
  }
  return out;
}

}  // namespace

std::map<int, DeepSpeedFiles> find_deepspeed(DirectoryListing const& listing) {
  struct Found {
    ByData models{};
    ByData optimizers{};
    std::filesystem::path whole{};
  };
  std::map<int, Found> ranks;
  bool zero = false;
  for (auto const& name : listing.files) {
    if (name.find("expp_rank_") != std::string::npos) {
      refuse_listing(
          listing,
          "there are optimizer states of experts, but the files of the experts (layer_*_expert_*_model_states.pt) "
          "are missing",
          name,
          "copy the expert files, or convert the checkpoint with DeepSpeed's zero_to_fp32.py or ds_to_universal.py "
          "first");
    }
    if (auto const optimizer = parse(name, optim_ending); optimizer && optimizer->data) {
      zero = true;
      if (!ranks[optimizer->model].optimizers.emplace(*optimizer->data, listing.path / name).second) {
        refuse_listing(listing, "two optimizer states belong to the same rank", name,
                       "remove the files of the other save (with or without \"bf16_\")");
      }
    } else if (auto const model = parse(name, model_ending)) {
      zero = zero || model->data;
      if (model->data) ranks[model->model].models.emplace(*model->data, listing.path / name);
      if (!model->data) ranks[model->model].whole = listing.path / name;
    }
  }
  std::map<int, DeepSpeedFiles> out;
  if (!zero) return out;
  for (auto const& [rank, found] : ranks) {
    auto& files = out[rank];
    files.optim_states = all_of(found.optimizers, listing);
    files.model_states = found.whole.empty() ? all_of(found.models, listing) : std::vector{found.whole};
    if (files.optim_states.empty() || files.model_states.empty()) {
      refuse_listing(listing,
                     "model-parallel rank " + std::to_string(rank) + " lacks its model or its optimizer states", {},
                     "copy both: the flat weights are in the optimizer states, their shapes in the model states");
    }
  }
  return out;
}

void require_no_universal(DirectoryListing const& listing) {
  if (!std::binary_search(listing.directories.begin(), listing.directories.end(), "zero")) return;
  for (auto const& parameter : list_directory(listing.path / "zero").directories) {
    std::error_code error;
    auto const folder = listing.path / "zero" / parameter;
    if (!std::filesystem::exists(folder / "fp32.pt", error)) continue;
    refuse_listing(
        listing,
        "this is a universal checkpoint of DeepSpeed, with a folder for each parameter; this format is not supported",
        folder.string(), "pass the checkpoint that it was made from, or the output of zero_to_fp32.py");
  }
}

}  // namespace crossrank::checkpoint
